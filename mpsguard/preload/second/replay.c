#define _GNU_SOURCE
#include "second/replay.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "second/host_memory.h"
#include "second/host_reads.h"
#include "second/log.h"
#include "second/logged.h"
#include "second/objects.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/roles.h"
#include "second/spare.h"
#include "second/structures.h"
#include "second/translate.h"

// One stream, and one that all others wait for: the log's order is one in which nothing is too early.
#define IN_ORDER WORD(MG_STREAM_LEGACY)
// That many calls are enqueued at most; then it is looked whether they end.
#define BATCH 256
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
        mg_result asked = CALL(copies_second(), cuStreamQuery, IN_ORDER);
        // Functions without a stream may be of the kind that takes the thread's.
        if (asked == MG_SUCCESS) asked = CALL(copies_second(), cuStreamQuery, WORD(MG_STREAM_PER_THREAD));
        if (asked != MG_NOT_READY) return asked == MG_SUCCESS;
        if (seconds() > until) return false;
        // Most of it is over soon.
        if (looks > LOOKS) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

static bool repeat_launch(log_entry *entry) {
    const unsigned char *at = log_bytes(entry);
    logged_launch kept;
    memcpy(&kept, at, sizeof kept);
    at += sizeof kept;
    launch_attribute attributes[kept.attribute_count + 1];
    unsigned count = 0;
    for (unsigned i = 0; i < kept.attribute_count; ++i) {
        memcpy(&attributes[count], at, sizeof *attributes);
        at += sizeof *attributes;
        // One that begins before the one before it has ended: here, none does.
        if (attributes[count].id != ATTRIBUTE_PROGRAMMATIC_SERIALIZATION) ++count;
    }
    const size_t parameter_count = kept.layout != NULL ? kept.layout->count : 0;
    const void *parameters[parameter_count + 1];
    for (size_t i = 0; i < parameter_count; ++i) parameters[i] = at + kept.layout->parameters[i].offset;
    const word packed[] = {EXTRA_POINTER, WORD(at), EXTRA_SIZE, WORD(&kept.size), EXTRA_END};
    const word function = rebuild_translate(kept.function), given = kept.layout != NULL ? WORD(parameters) : 0,
               extra = kept.packed ? WORD(packed) : 0;
    const unsigned *const s = kept.sizes;
    if (function == 0) return false;
    if (roles_has_config((function_id)entry->function)) {
        launch_config config = {.stream = IN_ORDER, .attributes = attributes, .attribute_count = count};
        memcpy(config.sizes, s, sizeof config.sizes);
        return CALL(copies_second(), cuLaunchKernelEx, WORD(&config), function, given, extra) == MG_SUCCESS;
    }
    const word words[] = {function, s[0], s[1], s[2], s[3], s[4], s[5], s[6], IN_ORDER, given, extra};
    return copies_call(copies_second(), (function_id)entry->function, words, functions[entry->function].count) == MG_SUCCESS;
}

static bool repeat_call(log_entry *entry) {
    const function_id id = (function_id)entry->function;
    word words[MOST_PARAMETERS], translated[MOST_PARAMETERS];
    translate_room room;
    memcpy(words, entry->words, entry->count * sizeof *words);
    if (facts[id].stream != NO_STREAM) words[facts[id].stream] = IN_ORDER;
    if (facts[id].shape == SHAPE_PLANE) words[0] = WORD(log_bytes(entry));
    return translate_words(id, words, translated, &room) &&
           copies_call(copies_second(), id, translated, functions[id].count) == MG_SUCCESS;
}

static bool repeat_to_device(log_entry *entry) {
    const word *const w = entry->words;
    word to = w[0];
    return translate_address(&to) &&
           CALL(copies_second(), cuMemcpyHtoDAsync_v2, to, WORD(log_bytes(entry)), w[2], IN_ORDER) == MG_SUCCESS;
}

static bool repeat_to_host(log_entry *entry) {
    const word *const w = entry->words;
    word from = w[1];
    void *const between = malloc(w[2]);
    // First what is before it, for that may not end.
    const bool done = between != NULL && translate_address(&from) && wait() &&
                      CALL(copies_second(), cuMemcpyDtoH_v2, WORD(between), from, w[2]) == MG_SUCCESS;
    const bool right = done && host_reads_repeat(entry, between);
    free(between);
    if (done && !right) reasons_hold_for(REASON_replay_diverged, copies_name((function_id)entry->function));
    return right;
}

static bool repeat(log_entry *entry) {
    switch ((log_kind)entry->kind) {
        case LOG_CALL: return repeat_call(entry);
        case LOG_LAUNCH: return repeat_launch(entry);
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
    const mg_result now = CALL(copies_second(), cuStreamQuery, IN_ORDER);
    // Whatever could not be made, for want of a context.
    if (!copies_is_loss(now)) reasons_hold_for(REASON_not_repeated, what);
    // It may have been good where the program ran it.
    else if (now == MG_ILLEGAL_ADDRESS && host_memory_was_named()) reasons_hold_for(REASON_host_memory_in_kernels, what);
    else if (b->doubt) reasons_hold_for(REASON_repeated_fault, what);
    else reasons_hold_for(REASON_replay_diverged, "a fault in work that was over");
}

bool replay_log(long *count, double most_seconds) {
    borders b = {.kept = copies_place() == PLACE_ALONE};
    bool right = true;
    ends_at = seconds() + most_seconds;
    *count = 0;
    for (log_entry *entry = log_next(NULL); right && entry != NULL; entry = log_next(entry)) {
        right = passes(&b, entry) && repeat(entry) && (++*count % BATCH != 0 || wait());
        if (!right) hold_why(&b, copies_name((function_id)entry->function));
    }
    if (right && !wait()) {
        hold_why(&b, "the replay does not end");
        right = false;
    }
    return right;
}
