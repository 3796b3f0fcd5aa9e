#define _GNU_SOURCE
#include "second/takeover.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "second/ahead.h"
#include "second/alone.h"
#include "second/beside.h"
#include "second/claim.h"
#include "second/epoch.h"
#include "second/host_reads.h"
#include "second/images.h"
#include "second/lane.h"
#include "second/log.h"
#include "second/memory.h"
#include "second/move.h"
#include "second/objects.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/recovery.h"
#include "second/report.h"
#include "second/request.h"
#include "second/room.h"
#include "second/spare.h"
#include "second/steps.h"
#include "second/work.h"
#include "second/variables.h"
#include "second/warm.h"

// Between two looks whether the program is idle. Saving takes no more than a fiftieth of the time.
#define LOOK_MS 20
#define SAVING_SHARE 50
// A program that is to move is left until it is idle for so long.
#define IDLE_MS 500
#define IDLE_LOOK_MS 0.2
// Of memory that is mapped ahead, in one look, at some milliseconds each; and before a move.
#define MOST_IN_A_LOOK 8
#define MOST_BEFORE_A_MOVE 4096
// One may take as long as several looks, and what the program frees is not kept for so long.
#define MOST_INSTANCES_IN_A_LOOK 1
// A lane that has died is cleared by then, beside six busy programs 3 s (H200, 580.159.04).
#define CLEARED_MS 5000
// Between two questions whether the next driver may be made.
#define ASK_MS 1000
// For the guard, behind a move.
#define GUARD_MS 20000

static bool ahead;  // of the thread: whether the second driver is made before it is needed
static __thread unsigned entered;  // the number of the copy in which this thread has a context as the program set it

static void pause_ms(double milliseconds) {
    const long nanoseconds = (long)(milliseconds * 1e6);
    const struct timespec t = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&t, NULL);
}

static void make_epoch(bool drain) {
    takeover_lock();
    const driver_copy *const copy = copies_at_hand();
    if (!takeover_was_refused() && CALL(copy, cuCtxSetCurrent, copy->context) == MG_SUCCESS)
        epoch_make((int)takeover_device(), drain);
    takeover_unlock();
}

void takeover_at_wait(void) {
    word current = 0;
    reason why;
    if (!epoch_is_due() || !work_is_idle() || reasons_any(&why) || !takeover_try_lock()) return;
    const driver_copy *const copy = copies_at_hand();
    // The program's threads keep the contexts that they have.
    if (!takeover_was_refused() && copy->context != 0 && CALL(copy, cuCtxGetCurrent, WORD(&current)) == MG_SUCCESS && current == copy->context)
        epoch_make((int)takeover_device(), false);
    takeover_unlock();
}

static bool is_hot(void) { return takeover_mode() == SECOND_HOT; }
static const char *name_of(reason why) { return why != REASON_COUNT ? reasons_name(why) : NULL; }
static void say(claim_phase phase, reason why) { claim_say(phase, is_hot(), name_of(why)); }

// One to go over with, unless it is there, and one more where work in flight may have to be repeated alone.
static bool has_too_few_copies(void) {
    const int wanted = !beside_is_made(PLACE_LANE) + (log_is_on() && !work_is_idle());
    return copies_left() < wanted;
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
    if (why == REASON_COUNT && has_too_few_copies()) why = REASON_no_copies_left;
    claim_wait(is_hot(), name_of(why));
}

// The copy at work is at hand from here on. No call is counted, and none begins before the end.
static void go_on(bool is_move) {
    memory_go_on();
    rebuild_go_on();
    variables_go_on();
    host_reads_leave();
    work_all_over();
    beside_go_on();
    log_may_begin_again();
    // Until it has been looked at, it is not known whether it would live again.
    say(is_move ? CLAIM_MOVED : CLAIM_WENT_OVER, REASON_changed_variables);
    takeover_commit(is_move);
    work_open();
}

// Under the lock.
static bool may_move(const driver_copy *from, reason *why) {
    *why = REASON_second_failed;
    if (copies_at_hand() != from || takeover_was_refused() || !takeover_is_owner()) return false;
    return !reasons_any(why);
}

typedef struct {
    request_answer answer;
    const char *reason, *step;
} attempt;

// Stops the program, and lets it go on in the second driver, or as it was.
static attempt stop_and_move(const request *asked, const driver_copy *from, memory_list **left, steps *of, double prepared) {
    reason why;
    takeover_lock();
    attempt made = {.answer = ANSWER_FAILED};
    if (!may_move(from, &why)) {
        made.reason = reasons_name(why);
        move_give_up();
    } else if (!steps_end(of, &of->quiet, move_stop())) {
        made.answer = ANSWER_BUSY;
        move_go_on();
        // One that was made for a fault is kept for it.
        if (!is_hot() || asked->share != 0) move_give_up();
    } else {
        made.step = move_carry();
        steps_end(of, &of->memory, true);
        if (made.step == NULL && !request_stands(asked)) made.step = "taken back";
        if (made.step == NULL) {
            *left = memory_all();
            made.answer = ANSWER_MOVED;
            of->context = prepared;
            // Before any thread goes on: it may end the program.
            report_write("moved", NULL, "", steps_since(of), of);
            go_on(true);
        } else {
            made.reason = reasons_name(REASON_second_failed);
            move_give_up();
            move_go_on();
        }
    }
    takeover_unlock();
    return made;
}

static void move_as_asked(const request *asked) {
    reason why;
    memory_list *left = NULL;
    const driver_copy *const before = copies_at_hand();
    attempt made = {.answer = ANSWER_FAILED};
    const steps begun = steps_begin();
    request_say(asked, ANSWER_UNDER_WAY, 0, 0, NULL);
    takeover_lock();
    move_note_sockets();
    if (!may_move(before, &why)) made.reason = reasons_name(why);
    else if ((made.step = move_prepare(asked->share)) != NULL)
        made.reason = reasons_name(strcmp(made.step, MOVE_NO_COPIES) == 0 ? REASON_no_copies_left : REASON_second_failed);
    takeover_unlock();
    // A new one has nothing yet.
    for (int i = 0; ahead && made.reason == NULL && i < 2; ++i) {
        ahead_look();
        room_map_ahead(MOST_BEFORE_A_MOVE);
    }
    const double prepared = steps_since(&begun);
    if (made.reason == NULL)
        for (const double until = steps_now() + IDLE_MS; !work_is_idle() && steps_now() < until;) pause_ms(IDLE_LOOK_MS);
    steps stopped = steps_begin();
    if (made.reason == NULL) made = stop_and_move(asked, before, &left, &stopped, prepared);
    const double paused = steps_since(&stopped);
    stopped.context = prepared;
    beside_want_share(0);
    if (made.answer == ANSWER_MOVED) {
        // The spare memory of the driver that was left is freed then, and its addresses are the program's.
        takeover_lock();
        ahead_end();
        takeover_unlock();
        move_close(before, left);
    } else
        report_write(made.answer == ANSWER_BUSY ? "busy" : "not_moved", made.reason, made.step != NULL ? made.step : "", paused, &stopped);
    request_say(asked, made.answer, prepared, paused, made.reason);
    if (made.answer != ANSWER_MOVED || !asked->shut_down) return;
    // The guard has the old server end the context first.
    for (const double until = steps_now() + GUARD_MS; request_stands(asked) && steps_now() < until;) pause_ms(LOOK_MS);
    move_shut_down();
}

// What the program had when all was made last, and the second driver had mapped for it.
typedef struct {
    word objects, mapped;
    bool refused;  // it would be: nothing is made for it then
    bool whole;
} made_ahead;

// Not while a takeover is under way: afterwards the second driver's objects are the program's own.
static void make_ahead(made_ahead *last) {
    reason why;
    takeover_lock();
    if (room_is_prepared() && !takeover_has_to_wait()) {
        // What changes from here on is seen by the next look.
        made_ahead now = {objects_changes(), ahead_changes(), reasons_any(&why), last->whole};
        if (!last->whole || now.objects != last->objects || now.mapped != last->mapped || now.refused != last->refused)
            now.whole = now.refused ? rebuild_end_unused() : rebuild_ahead(MOST_INSTANCES_IN_A_LOOK);
        *last = now;
        if (!now.refused) variables_ahead();
    }
    takeover_unlock();
}

// Those of no use any more. What a driver frees may wait as well, until the lane that has died is cleared: no call waits for it.
static void end_instances(bool all) {
    const driver_copy *const copy = copies_at_hand();
    if (!rebuild_has_unused(all) || takeover_has_to_wait()) return;
    takeover_lock();
    if (all ? !beside_is_made(PLACE_LANE) || beside_enter(PLACE_LANE) : CALL(copy, cuCtxSetCurrent, copy->context) == MG_SUCCESS)
        rebuild_end_instances(all);
    takeover_unlock();
}

// What there is of the copy at hand since it is.
typedef struct {
    unsigned number;
    double since, ask_at;  // of the clock: when it came, and when it is looked again whether its next one may be made
    bool given_up;         // it could not be made ahead: it is made at a fault
    made_ahead made;
} at_hand;

// What this thread does breaks no capture of another one.
static void relax(const driver_copy *copy) {
    int mode = MG_CAPTURE_RELAXED;
    CALL(copy, cuThreadExchangeStreamCaptureMode, WORD(&mode));
}

// The program has gone on in another copy.
static void begin_with(at_hand *now) {
    const driver_copy *const copy = copies_at_hand();
    if (now->number == copy->number) return;
    *now = (at_hand){.number = copy->number, .since = steps_now()};
    relax(copy);
    takeover_lock();
    // Another one may be at hand by now: what is left of this one stays with it.
    if (copies_at_hand() == copy && CALL(copy, cuCtxSetCurrent, copy->context) == MG_SUCCESS) ahead_end();
    takeover_unlock();
}

// At first, after a move that failed, and in place of one that is at hand now: where the lane may be the one that has just died.
static void make_ready_ahead(at_hand *now) {
    const bool later = now->number != 0;
    if (beside_is_tried() || now->given_up || steps_now() < now->ask_at) return;
    now->ask_at = steps_now() + ASK_MS;
    if (later && !lane_is_ready()) return;
    if (later) claim_makes_ready(true);
    takeover_lock();
    const int64_t failures = reasons_count(REASON_second_failed);
    const bool made = !takeover_was_refused() && now->number == copies_at_hand()->number && beside_make(PLACE_LANE);
    if (made && beside_enter(PLACE_LANE)) warm_up();
    if (later && !made && beside_is_tried()) {
        beside_give_up();
        reasons_let_go_to(REASON_second_failed, failures);
        now->given_up = true;
    }
    takeover_unlock();
    if (later) claim_makes_ready(false);
    if (made) takeover_ends_with_process();
}

static void *keep_ready(void *unused) {
    (void)unused;
    char directory[4096];
    relax(&first_copy);
    if (!lane_service(directory, sizeof directory)) reasons_hold(REASON_no_other_lane);
    images_prepare();
    say_what_may_come();
    ahead = is_hot() && lane_takes_ahead();
    uint32_t served = 0;
    uint64_t seen = 0;
    reason why;
    at_hand now = {0};
    while (!takeover_was_refused()) {
        double more = 0;
        begin_with(&now);
        if (ahead) make_ready_ahead(&now);
        const request asked = request_now();
        if (asked.number != 0 && asked.number != served) {
            move_as_asked(&asked);
            served = asked.number;
            now.made = (made_ahead){0};
            continue;
        }
        if (takeover_happened() && steps_now() > now.since + CLEARED_MS) end_instances(false);
        say_what_may_come();
        const uint64_t total = work_total();
        variables_answer();
        // Two looks in a row: a program that is about to go on is not held up.
        const bool still = total == seen && work_is_idle();
        // No epoch is made then, and none of use.
        if (spare_is_held() && (log_has_ended() || reasons_any(&why))) {
            takeover_lock();
            room_give_up_spare(REASON_work_in_flight, "no epoch yet");
            takeover_unlock();
        }
        if (epoch_is_wanted()) {
            if ((still && epoch_is_due()) || epoch_is_overdue()) make_epoch(!still);
        } else if (still && !variables_are_saved(total)) {
            const double start = steps_now();
            variables_save(total);
            more = SAVING_SHARE * (steps_now() - start);
        }
        if (ahead) {
            ahead_look();
            room_map_ahead(MOST_IN_A_LOOK);
        }
        make_ahead(&now.made);
        seen = total;
        pause_ms(LOOK_MS);
        // What the program frees is not kept for so long.
        for (; more > 0 && now.number == copies_at_hand()->number; more -= LOOK_MS / 2) {
            pause_ms(more < LOOK_MS / 2 ? more : LOOK_MS / 2);
            if (ahead) room_map_ahead(MOST_IN_A_LOOK);
        }
    }
    takeover_lock();
    if (beside_is_made(PLACE_LANE) && beside_enter(PLACE_LANE)) ahead_give_up(true);
    takeover_unlock();
    if (rebuild_has_unused(true)) pause_ms(CLEARED_MS);
    for (; rebuild_has_unused(true); pause_ms(LOOK_MS)) end_instances(true);
    return NULL;
}

void takeover_begin(word context, int of) {
    word known;
    if (!takeover_set_context(context, of, &known)) {
        if (known != context) reasons_hold(REASON_several_devices);
        return;
    }
    beside_begin(of);
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
    report_write(outcome, why != REASON_COUNT ? reasons_name(why) : NULL, detail, steps_since(of), of);
}

// Under the lock, by one thread; all others wait in takeover_after or have not met the fault yet.
static bool take_over(void) {
    steps made = steps_begin();
    reason why = REASON_COUNT;
    say(CLAIM_GOING_OVER, REASON_COUNT);
    work_close();
    if (work_is_captured()) reasons_hold_for(REASON_graphs, "a capture under way");
    bool replay = recovery_at_fault() == RECOVERY_REPLAYED;
    steps_end(&made, &made.quiet, true);
    if (takeover_is_owner() && !reasons_any(&why)) {
        bool done = true;
        if (replay && alone_is_wanted()) {
            done = !reasons_any(&why) && alone_repeat(&made);
            replay = !done;
            made.alone = steps_since(&made);
        }
        done = done && recovery_go_over(replay, &made) && !reasons_any(&why);
        if (done) {
            // Before any thread goes on: it may end the program.
            report_takeover("taken_over", REASON_COUNT, &made);
            go_on(false);
            return true;
        }
        if (why == REASON_COUNT && !reasons_any(&why)) reasons_hold(why = REASON_second_failed);
    }
    say(CLAIM_REFUSED, why);
    report_takeover("refused", why, &made);
    work_open();
    return false;
}

bool takeover_after(const driver_copy *lost) {
    if (takeover_context() == 0 || takeover_was_refused()) return false;
    bool another = false;
    takeover_lock_at_once();
    if (copies_at_hand() != lost) another = true;
    else if (!takeover_was_refused()) {
        another = take_over();
        if (!another) takeover_refuse();
    }
    takeover_unlock();
    return another;
}

void takeover_wait(void) {
    takeover_lock();
    takeover_unlock();
}

// What is current in this thread as the program knows it.
static word current_before(unsigned number) {
    word current = 0;
    // The first copy knows its threads' contexts after the fault, too (measured with 580).
    if (CALL(&first_copy, cuCtxGetCurrent, WORD(&current)) == MG_SUCCESS || !takeover_was_move()) return current;
    // What a driver answers of which the server has ended the client was not measured. The one before this may know, too; else, a program
    // here has one context.
    const driver_copy *const before = number != 0 ? copies_numbered(number) : NULL;
    if (before == NULL || CALL(before, cuCtxGetCurrent, WORD(&current)) != MG_SUCCESS) return takeover_context();
    return current == before->context ? takeover_context() : 0;
}

void takeover_enter(void) {
    driver_copy *const copy = copies_at_work();
    if (entered == copy->number) return;
    const word current = current_before(entered);
    entered = copy->number;
    if (current != 0) CALL(copy, cuCtxSetCurrent, rebuild_translate(current));
}
