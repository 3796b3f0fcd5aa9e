#define _GNU_SOURCE
#include "second/replay.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "second/host_memory.h"
#include "second/host_reads.h"
#include "second/log.h"
#include "second/reasons.h"
#include "second/repeat.h"
#include "second/spare.h"
#include "second/translate.h"

// One stream, and one that all others wait for: the log's order is one in which nothing is too early.
#define IN_ORDER WORD(MG_STREAM_LEGACY)
// Of a batch. Kernels that wait for one another would never end, one after the other.
#define MOST_SECONDS 30
#define LOOKS 200

static double ends_at;  // of all of it

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool wait(void) {
    const double batch = seconds() + MOST_SECONDS, until = batch < ends_at ? batch : ends_at;
    for (long looks = 0;; ++looks) {
        mg_result asked = CALL(copies_at_work(), cuStreamQuery, IN_ORDER);
        // Functions without a stream may be of the kind that takes the thread's.
        if (asked == MG_SUCCESS) asked = CALL(copies_at_work(), cuStreamQuery, WORD(MG_STREAM_PER_THREAD));
        if (asked != MG_NOT_READY) return asked == MG_SUCCESS;
        if (seconds() > until) return false;
        // Most of it is over soon.
        if (looks > LOOKS) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

static bool repeat_to_device(log_entry *entry) {
    const word *const w = entry->words;
    word to = w[0];
    return translate_address(&to) &&
           CALL(copies_at_work(), cuMemcpyHtoDAsync_v2, to, WORD(log_bytes(entry)), w[2], IN_ORDER) == MG_SUCCESS;
}

static bool repeat_to_host(log_entry *entry) {
    const word *const w = entry->words;
    word from = w[1];
    void *const between = malloc(w[2]);
    // First what is before it, for that may not end.
    const bool done = between != NULL && translate_address(&from) && wait() &&
                      CALL(copies_at_work(), cuMemcpyDtoH_v2, WORD(between), from, w[2]) == MG_SUCCESS;
    const bool right = done && host_reads_repeat(entry, between);
    free(between);
    if (done && !right) reasons_hold_for(REASON_replay_diverged, copies_name((function_id)entry->function));
    return right;
}

static bool repeat(log_entry *entry) {
    switch ((log_kind)entry->kind) {
        case LOG_CALL: return repeat_call(entry, IN_ORDER);
        case LOG_LAUNCH: return repeat_launch(entry, IN_ORDER);
        case LOG_TO_DEVICE: return repeat_to_device(entry);
        case LOG_TO_HOST: return repeat_to_host(entry);
        case LOG_MAP: return spare_repeat(entry);
        case LOG_UNMAP: return wait() && spare_repeat(entry);
        case LOG_NOTHING: return true;
    }
    return false;
}

// Only work of which nothing has said that it was over can have been the fault's cause, and it is not mixed with other work: what
// faults is among that behind the last border.
typedef struct {
    bool kept;   // whether borders are
    bool doubt;  // whether what comes now is such work
} borders;

static bool passes(borders *b, const log_entry *entry) {
    if (!b->kept || entry->stream == NULL) return true;
    const bool doubt = !work_was_over(entry->stream, entry->behind);
    if (doubt == b->doubt) return true;
    // While it waits, it is the work before that faults.
    if (!wait()) return false;
    b->doubt = doubt;
    return true;
}

static void hold_why(const borders *b, const char *what) {
    reason why;
    if (reasons_has(REASON_replay_diverged)) return;
    if (!b->kept) {
        if (!reasons_any(&why)) reasons_hold_for(REASON_second_failed, what);
        return;
    }
    const mg_result now = CALL(copies_at_work(), cuStreamQuery, IN_ORDER);
    // Whatever could not be made, for want of a context.
    if (!copies_is_loss(now)) reasons_hold_for(REASON_not_repeated, what);
    // It may have been good where the program ran it.
    else if (now == MG_ILLEGAL_ADDRESS && host_memory_was_named()) reasons_hold_for(REASON_host_memory_in_kernels, what);
    else if (b->doubt) reasons_hold_for(REASON_repeated_fault, what);
    else reasons_hold_for(REASON_replay_diverged, "a fault in work that was over");
}

bool replay_log(long *count, double most_seconds) {
    borders b = {.kept = copies_at_work()->place == PLACE_ALONE};
    bool right = true;
    ends_at = seconds() + most_seconds;
    *count = 0;
    for (log_entry *entry = log_next(NULL); right && entry != NULL; entry = log_next(entry)) {
        right = passes(&b, entry) && repeat(entry) && (++*count % REPLAY_BATCH != 0 || wait());
        if (!right) hold_why(&b, copies_name((function_id)entry->function));
    }
    if (right && !wait()) {
        hold_why(&b, "the replay does not end");
        right = false;
    }
    return right;
}
