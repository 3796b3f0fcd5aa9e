#define _GNU_SOURCE
#include "second/epoch.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "second/host_reads.h"
#include "second/log.h"
#include "second/reasons.h"
#include "second/spare.h"
#include "second/steps.h"
#include "second/variables.h"
#include "second/work.h"

// CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: kernels may write to any memory of the process.
#define PAGEABLE_MEMORY_ACCESS 88
#define MIB ((uint64_t)1 << 20)
#define DEFAULT_MS 100
// Epochs take at most a two-hundredth of the time.
#define SHARE 200
// So many times late, the program is stopped for one.
#define LATE 5
#define QUIET_MS 100
#define DRAIN_MS 500

static _Atomic double not_before, late_after;  // in milliseconds of the clock
static _Atomic uint64_t made_behind;           // all work before the last one

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *const text = secure_getenv(name);
    char *end = NULL;
    const unsigned long long value = text != NULL ? strtoull(text, &end, 10) : 0;
    return text != NULL && end != text && *end == '\0' && value < UINT32_MAX ? value : otherwise;
}

static uint64_t spare_most(void) {
    static _Atomic uint64_t known = UINT64_MAX;
    if (known == UINT64_MAX) known = number("MPSGUARD_SECOND_SPARE_MIB", 0) * MIB;
    return known;
}

// As it is set, or else by what an epoch takes.
static double interval(double cost) {
    static _Atomic uint64_t known = UINT64_MAX;
    if (known == UINT64_MAX) known = number("MPSGUARD_SECOND_EPOCH_MS", 0);
    return known > 0 ? (double)known : SHARE * cost > DEFAULT_MS ? SHARE * cost : DEFAULT_MS;
}

bool epoch_is_wanted(void) { return spare_most() > 0 && !log_has_ended(); }

bool epoch_is_due(void) {
    return epoch_is_wanted() && steps_now() >= not_before &&
           (!log_is_on() || work_total() != made_behind || spare_keeps_freed());
}

bool epoch_is_overdue(void) {
    // The first one is as late as any other only after as long: a program that begins has moments of its own, too.
    double none = 0;
    if (!epoch_is_due()) return false;
    atomic_compare_exchange_strong(&late_after, &none, steps_now() + LATE * interval(0));
    return log_is_crowded() || steps_now() >= late_after;
}

// An attempt that failed is not repeated at once. A program that had to be stopped has no moments of its own.
static void plan(double start, bool stopped) {
    const double end = steps_now(), wait = interval(end - start);
    not_before = end + wait;
    late_after = not_before + (stopped ? 0 : LATE * wait);
}

static bool kernels_use_host_memory(int device) {
    static int known = -1;
    if (known < 0 &&
        CALL(copies_at_hand(), cuDeviceGetAttribute, WORD(&known), PAGEABLE_MEMORY_ACCESS, (word)device) != MG_SUCCESS)
        known = 0;
    return known != 0;
}

// From the moment the variables are read, memory itself is the state; when all is copied, the copy is.
static bool hold(int device, uint64_t total, double *start) {
    reason why;
    const double looked = steps_now();
    if (!variables_look()) return false;
    // What is done once is not the cost of each epoch.
    *start += steps_now() - looked;
    if (!variables_save(total)) return false;
    log_cannot_begin(REASON_work_in_flight, "a fault during an epoch");
    if (kernels_use_host_memory(device)) log_end(REASON_host_memory_in_kernels, "all memory of the process");
    // What is refused anyway needs no copy.
    if (reasons_any(&why)) {
        log_cannot_begin(why, "no epoch");
        return false;
    }
    const double before = steps_now();
    if (!spare_make_room(spare_most(), device)) return false;
    *start += steps_now() - before;
    if (!spare_fill()) return false;
    host_reads_forget();
    made_behind = total;
    return log_begin();
}

// A stream that is asked during a capture ends the capture.
static bool has_no_work(bool drain) {
    reason why;
    if (!work_is_quiet(drain ? QUIET_MS : 0) || work_is_captured()) return false;
    return work_is_idle() || (drain && !reasons_any(&why) && work_drain(DRAIN_MS));
}

bool epoch_make(int device, bool drain) {
    double start = steps_now();
    work_close();
    const bool idle = has_no_work(drain);
    // While its work ends, the GPU does what it would have done anyway.
    if (idle) start = steps_now();
    const bool done = idle && hold(device, work_total(), &start);
    work_open();
    if (idle || drain) plan(start, drain);
    return done;
}
