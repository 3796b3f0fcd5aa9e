#define _GNU_SOURCE
#include "second/takeover.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "second/alone.h"
#include "second/beside.h"
#include "second/claim.h"
#include "second/epoch.h"
#include "second/images.h"
#include "second/lane.h"
#include "second/log.h"
#include "second/memory.h"
#include "second/memory_pools.h"
#include "second/move.h"
#include "second/objects.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/replay.h"
#include "second/request.h"
#include "second/spare.h"
#include "second/steps.h"
#include "second/work.h"
#include "second/variables.h"

// Between two looks whether the program is idle. Saving takes no more than a fiftieth of the time.
#define LOOK_MS 20
#define SAVING_SHARE 50
// For calls that enqueue work and are under way when another thread has met the fault.
#define CALLS_END_MS 1000
// A program that is to move is left until it is idle for so long.
#define IDLE_MS 500
#define IDLE_LOOK_MS 0.2
// For the guard, behind a move.
#define GUARD_MS 20000
// For the replay on the other lane, where each batch has a limit of its own.
#define NO_LIMIT 1e9

static _Atomic(const driver_copy *) at_hand = &first_copy;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // a takeover, or making the second driver ready for one
static _Atomic word context_first;
static int device;
static _Atomic bool refused;
static pid_t owner;
static _Atomic bool moved;
static __thread bool entered;

second_mode takeover_mode(void) {
    static _Atomic int known;
    int mode = atomic_load_explicit(&known, memory_order_relaxed) - 1;
    if (mode < 0) {
        const char *const text = secure_getenv("MPSGUARD_SECOND_DRIVER");
        mode = text == NULL ? SECOND_OFF : strcmp(text, "hot") == 0 ? SECOND_HOT : strcmp(text, "cold") == 0 ? SECOND_COLD : SECOND_OFF;
        atomic_store_explicit(&known, mode + 1, memory_order_relaxed);
    }
    return (second_mode)mode;
}

const driver_copy *takeover_copy(void) { return atomic_load_explicit(&at_hand, memory_order_acquire); }

bool takeover_happened(void) { return takeover_copy() != &first_copy; }

bool takeover_was_move(void) { return atomic_load_explicit(&moved, memory_order_acquire); }

word takeover_device(void) { return (word)device; }

word takeover_context(void) { return atomic_load_explicit(&context_first, memory_order_acquire); }

static void pause_ms(double milliseconds) {
    const long nanoseconds = (long)(milliseconds * 1e6);
    const struct timespec t = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&t, NULL);
}

static void make_epoch(bool drain) {
    pthread_mutex_lock(&lock);
    if (takeover_copy() == &first_copy && !atomic_load_explicit(&refused, memory_order_acquire) &&
        CALL(&first_copy, cuCtxSetCurrent, takeover_context()) == MG_SUCCESS)
        epoch_make(takeover_context(), device, drain);
    pthread_mutex_unlock(&lock);
}

void takeover_at_wait(void) {
    word current = 0;
    reason why;
    if (!epoch_is_due() || !work_is_idle() || reasons_any(&why) || pthread_mutex_trylock(&lock) != 0) return;
    // The program's threads keep the contexts that they have.
    if (takeover_copy() == &first_copy && !atomic_load_explicit(&refused, memory_order_acquire) && takeover_context() != 0 &&
        CALL(&first_copy, cuCtxGetCurrent, WORD(&current)) == MG_SUCCESS && current == takeover_context())
        epoch_make(takeover_context(), device, false);
    pthread_mutex_unlock(&lock);
}

static bool give_up_spare(reason why, const char *detail) {
    if (!spare_is_held()) return false;
    pthread_mutex_lock(&lock);
    log_break(why, detail);
    const bool given = takeover_copy() == &first_copy && spare_give_up();
    pthread_mutex_unlock(&lock);
    return given;
}

bool takeover_spare_given_up(void) { return give_up_spare(REASON_no_spare_memory, "the program needed it"); }

static void say(claim_phase phase, reason why) {
    claim_say(phase, takeover_mode() == SECOND_HOT, why != REASON_COUNT ? reasons_name(why) : NULL);
}

// What a fault would bring now: also a program that is busy just then is one that would be lost.
static void say_what_may_come(void) {
    reason why = REASON_COUNT;
    char detail[96];
    if (!reasons_any(&why) && !log_is_on()) {
        const bool idle = work_is_idle();
        if (idle && variables_are_saved(work_total())) why = REASON_COUNT;
        else if (epoch_is_wanted() || log_has_ended()) why = log_why(detail, sizeof detail);
        else why = idle ? REASON_changed_variables : REASON_work_in_flight;
    }
    say(CLAIM_WAITING, why);
}

static void report(const char *outcome, const char *reason, const char *detail, double milliseconds, const steps *of) {
    const char *const path = secure_getenv("MPSGUARD_SECOND_REPORT");
    const int fd = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600) : -1;
    if (fd < 0) return;
    char line[1024];
    const char *const quote = reason != NULL ? "\"" : "";
    const int length = snprintf(line, sizeof line,
                                "{\"pid\": %d, \"outcome\": \"%s\", \"reason\": %s%s%s, \"detail\": \"%s\", \"milliseconds\": %.3f, "
                                "\"repeated\": %ld, \"alone\": %.3f, \"quiet\": %.3f, \"context\": %.3f, \"memory\": %.3f, "
                                "\"objects\": %.3f, \"replay\": %.3f}\n",
                                (int)getpid(), outcome, quote, reason != NULL ? reason : "null", quote, detail, milliseconds, of->calls,
                                of->alone, of->quiet, of->context, of->memory, of->objects, of->replay);
    if (write(fd, line, (size_t)length) != length) { /* a report that cannot be written has no other reader */ }
    close(fd);
}

// Under the lock.
static bool may_move(reason *why) {
    *why = REASON_second_fault;
    if (takeover_copy() != &first_copy || atomic_load_explicit(&refused, memory_order_acquire) || getpid() != owner) return false;
    return !reasons_any(why);
}

typedef struct {
    request_answer answer;
    const char *reason, *step;
} attempt;

// Stops the program, and lets it go on in the second driver, or as it was.
static attempt stop_and_move(const request *asked, memory_list **first, steps *of, double prepared) {
    reason why;
    pthread_mutex_lock(&lock);
    attempt made = {.answer = ANSWER_FAILED};
    if (!may_move(&why)) {
        made.reason = reasons_name(why);
        if (takeover_copy() == &first_copy) move_give_up();
    } else if (!steps_end(of, &of->quiet, move_stop(takeover_context()))) {
        made.answer = ANSWER_BUSY;
        move_go_on();
        // One that was made for a fault is kept for it.
        if (takeover_mode() != SECOND_HOT || asked->share != 0) move_give_up();
    } else {
        made.step = move_carry(takeover_context());
        steps_end(of, &of->memory, true);
        if (made.step == NULL && !request_stands(asked)) made.step = "taken back";
        if (made.step == NULL) {
            *first = memory_all();
            log_end(REASON_second_fault, "");
            made.answer = ANSWER_MOVED;
            of->context = prepared;
            // Before any thread goes on: it may end the program.
            report("moved", NULL, "", steps_since(of), of);
            atomic_store_explicit(&moved, true, memory_order_release);
            atomic_store_explicit(&at_hand, copies_second(), memory_order_release);
            say(CLAIM_MOVED, REASON_COUNT);
        } else {
            made.reason = reasons_name(REASON_second_failed);
            move_give_up();
            move_go_on();
        }
    }
    pthread_mutex_unlock(&lock);
    return made;
}

static void move_as_asked(const request *asked) {
    reason why;
    memory_list *first = NULL;
    attempt made = {.answer = ANSWER_FAILED};
    const steps begun = steps_begin();
    request_say(asked, ANSWER_UNDER_WAY, 0, 0, NULL);
    pthread_mutex_lock(&lock);
    move_note_sockets();
    if (!may_move(&why)) made.reason = reasons_name(why);
    else if ((made.step = move_prepare(asked->share)) != NULL) made.reason = reasons_name(REASON_second_failed);
    pthread_mutex_unlock(&lock);
    const double prepared = steps_since(&begun);
    if (made.reason == NULL)
        for (const double until = steps_now() + IDLE_MS; !work_is_idle() && steps_now() < until;) pause_ms(IDLE_LOOK_MS);
    steps stopped = steps_begin();
    if (made.reason == NULL) made = stop_and_move(asked, &first, &stopped, prepared);
    const double paused = steps_since(&stopped);
    stopped.context = prepared;
    beside_want_share(0);
    if (made.answer == ANSWER_MOVED)
        move_close(takeover_context(), first);
    else
        report(made.answer == ANSWER_BUSY ? "busy" : "not_moved", made.reason, made.step != NULL ? made.step : "", paused, &stopped);
    request_say(asked, made.answer, prepared, paused, made.reason);
    if (made.answer != ANSWER_MOVED || !asked->shut_down) return;
    // The guard has the old server end the context first.
    for (const double until = steps_now() + GUARD_MS; request_stands(asked) && steps_now() < until;) pause_ms(LOOK_MS);
    move_shut_down();
}

static void *keep_ready(void *unused) {
    (void)unused;
    char directory[4096];
    // What this thread does breaks no capture of another one.
    int mode = MG_CAPTURE_RELAXED;
    CALL(&first_copy, cuThreadExchangeStreamCaptureMode, WORD(&mode));
    if (!lane_directory(directory, sizeof directory)) reasons_hold(REASON_no_other_lane);
    images_prepare();
    say_what_may_come();
    const bool ahead = takeover_mode() == SECOND_HOT && lane_takes_ahead();
    uint32_t served = 0;
    uint64_t seen = 0;
    reason why;
    const object *made = NULL;
    while (takeover_copy() == &first_copy && !atomic_load_explicit(&refused, memory_order_acquire)) {
        double wait = LOOK_MS;
        // At first, and after a move that failed.
        if (ahead && !beside_is_made(PLACE_LANE)) {
            pthread_mutex_lock(&lock);
            if (takeover_copy() == &first_copy) beside_make(PLACE_LANE);
            pthread_mutex_unlock(&lock);
        }
        const request asked = request_now();
        if (asked.number != 0 && asked.number != served) {
            move_as_asked(&asked);
            served = asked.number;
            made = NULL;
            continue;
        }
        say_what_may_come();
        const uint64_t total = work_total();
        variables_answer();
        // Two looks in a row: a program that is about to go on is not held up.
        const bool still = total == seen && work_is_idle();
        // No epoch is made then, and none of use.
        if (log_has_ended() || reasons_any(&why)) give_up_spare(REASON_work_in_flight, "no epoch yet");
        if (epoch_is_wanted()) {
            if ((still && epoch_is_due()) || epoch_is_overdue()) make_epoch(!still);
        } else if (still && !variables_are_saved(total)) {
            const double start = steps_now();
            variables_save(takeover_context(), total);
            wait += SAVING_SHARE * (steps_now() - start);
        }
        // Ahead of a takeover, as far as the program has come. Not while one is under way: afterwards the second driver's objects
        // are the program's own.
        if (total == seen) {
            pthread_mutex_lock(&lock);
            if (takeover_copy() == &first_copy && beside_is_made(PLACE_LANE) && beside_enter(PLACE_LANE)) {
                if (made != objects_newest()) {
                    made = objects_newest();
                    rebuild_ahead();
                }
                variables_ahead();
            }
            pthread_mutex_unlock(&lock);
        }
        seen = total;
        pause_ms(wait);
    }
    return NULL;
}

void takeover_begin(word context, int of) {
    word none = 0;
    if (!atomic_compare_exchange_strong(&context_first, &none, context)) {
        if (none != context) reasons_hold(REASON_several_devices);
        return;
    }
    device = of;
    beside_begin(context, of);
    owner = getpid();
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    // A fault of this thread is told as any other thread's.
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGFPE);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, keep_ready, NULL) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void report_takeover(const char *outcome, reason why, const steps *of) {
    char detail[128] = "";
    if (why != REASON_COUNT) reasons_detail(why, detail, sizeof detail);
    report(outcome, why != REASON_COUNT ? reasons_name(why) : NULL, detail, steps_since(of), of);
}

typedef enum { AS_IT_IS, REPLAYED, UNKNOWN } fault_state;

// Whether what is there at the fault is the program's state, or what the last epoch held has to be put back.
static fault_state state_at_fault(void) {
    char detail[96];
    if (!work_is_quiet(CALLS_END_MS)) {
        reasons_hold_for(REASON_work_in_flight, "a call that does not return");
        return UNKNOWN;
    }
    const bool idle = work_is_idle();
    if (idle && variables_are_saved(work_total())) return AS_IT_IS;
    if (log_is_on()) return REPLAYED;
    if (epoch_is_wanted() || log_has_ended()) reasons_hold_for(log_why(detail, sizeof detail), detail);
    else reasons_hold(idle ? REASON_changed_variables : REASON_work_in_flight);
    return UNKNOWN;
}

// Brings the second driver to what the program's state is, or was at the last epoch and what is in the log.
static bool go_over(bool replay, steps *of) {
    if (!steps_end(of, &of->context, beside_make(PLACE_LANE) && beside_enter(PLACE_LANE) && beside_set_limits())) return false;
    if (!steps_end(of, &of->memory, memory_move(replay))) return false;
    if (!steps_end(of, &of->objects, rebuild_at_takeover() && variables_restore() && memory_pools_move())) return false;
    return !replay || steps_end(of, &of->replay, replay_log(&of->calls, NO_LIMIT));
}

// Under the lock, by one thread; all others wait in takeover_after or have not met the fault yet.
static bool take_over(void) {
    steps made = steps_begin();
    reason why = REASON_COUNT;
    say(CLAIM_GOING_OVER, REASON_COUNT);
    work_close();
    if (work_is_captured()) reasons_hold_for(REASON_graphs, "a capture under way");
    bool replay = state_at_fault() == REPLAYED;
    steps_end(&made, &made.quiet, true);
    if (getpid() == owner && !reasons_any(&why)) {
        bool done = true;
        if (replay && alone_is_wanted()) {
            done = !reasons_any(&why) && alone_repeat(&made);
            replay = !done;
            made.alone = steps_since(&made);
        }
        done = done && go_over(replay, &made) && !reasons_any(&why);
        log_end(REASON_second_fault, "");
        if (done) {
            spare_end();
            entered = false;
            atomic_store_explicit(&at_hand, copies_second(), memory_order_release);
            say(CLAIM_WENT_OVER, REASON_COUNT);
            report_takeover("taken_over", REASON_COUNT, &made);
            return true;
        }
        if (why == REASON_COUNT && !reasons_any(&why)) reasons_hold(why = REASON_second_failed);
    }
    say(CLAIM_REFUSED, why);
    report_takeover("refused", why, &made);
    work_open();
    return false;
}

bool takeover_after(mg_result result) {
    (void)result;
    if (takeover_context() == 0) return false;
    bool another = false;
    pthread_mutex_lock(&lock);
    if (takeover_copy() != &first_copy) another = true;
    else if (!atomic_load_explicit(&refused, memory_order_relaxed)) {
        another = take_over();
        if (!another) atomic_store_explicit(&refused, true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return another;
}

void takeover_wait(void) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

void takeover_enter(void) {
    if (entered) return;
    entered = true;
    word current = 0;
    // The first copy knows its threads' contexts after the fault, too (measured with 580).
    const mg_result asked = CALL(&first_copy, cuCtxGetCurrent, WORD(&current));
    // What a driver answers of which the server has ended the client was not measured: a program here has one context.
    if (asked != MG_SUCCESS && takeover_was_move()) current = takeover_context();
    if (current == 0) return;
    CALL(copies_second(), cuCtxSetCurrent, rebuild_translate(current));
}
