#define _GNU_SOURCE
#include "second/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Pages are used as the log grows, and kept.
#define LOG_BYTES ((uint64_t)256 << 20)

static unsigned char *room;
static _Atomic uint64_t used;
static _Atomic bool on, ended;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // of why
static reason broken_by = REASON_work_in_flight;
static char broken_detail[96] = "no epoch yet";

bool log_is_on(void) { return atomic_load_explicit(&on, memory_order_acquire); }

bool log_has_ended(void) { return atomic_load_explicit(&ended, memory_order_acquire); }

bool log_is_crowded(void) { return log_is_on() && atomic_load_explicit(&used, memory_order_relaxed) > LOG_BYTES / 2; }

bool log_begin(void) {
    if (atomic_load(&ended)) return false;
    if (room == NULL) {
        void *const made = mmap(NULL, LOG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) return false;
        madvise(made, LOG_BYTES, MADV_DONTFORK);
        madvise(made, LOG_BYTES, MADV_HUGEPAGE);  // a fault each few launches would cost as much as they do
        room = made;
    }
    atomic_store(&used, 0);
    atomic_store_explicit(&on, true, memory_order_release);
    return true;
}

static void set_why(reason why, const char *detail) {
    pthread_mutex_lock(&lock);
    if (!atomic_load(&ended)) {
        broken_by = why;
        snprintf(broken_detail, sizeof broken_detail, "%s", detail);
    }
    pthread_mutex_unlock(&lock);
}

void log_break(reason why, const char *detail) {
    // The first one says why.
    if (atomic_exchange(&on, false)) set_why(why, detail);
}

void log_cannot_begin(reason why, const char *detail) {
    atomic_store(&on, false);
    set_why(why, detail);
}

void log_end(reason why, const char *detail) {
    set_why(why, detail);
    atomic_store(&ended, true);
    atomic_store(&on, false);
}

void log_may_begin_again(void) {
    atomic_store(&ended, false);
    log_cannot_begin(REASON_work_in_flight, "no epoch yet");
}

reason log_why(char *detail, size_t size) {
    pthread_mutex_lock(&lock);
    const reason why = broken_by;
    snprintf(detail, size, "%s", broken_detail);
    pthread_mutex_unlock(&lock);
    return why;
}

log_entry *log_add(log_kind kind, function_id function, const work_stream *stream, const word *words, size_t count, size_t bytes) {
    if (!log_is_on()) return NULL;
    const uint64_t head = sizeof(log_entry) + count * sizeof *words;
    // More than fits is not added up: it might not fit a number.
    const uint64_t size = bytes < LOG_BYTES ? head + ((bytes + 7) & ~(uint64_t)7) : LOG_BYTES + 1;
    const uint64_t at = size <= LOG_BYTES ? atomic_fetch_add_explicit(&used, size, memory_order_relaxed) : 0;
    if (size > LOG_BYTES || at + size > LOG_BYTES) {
        log_break(REASON_log_full, copies_name(function));
        return NULL;
    }
    log_entry *const made = (log_entry *)(void *)(room + at);
    *made = (log_entry){.size = (uint32_t)size, .function = (uint16_t)function, .kind = (uint8_t)kind, .count = (uint8_t)count,
                        .stream = stream, .behind = work_enqueued(stream)};
    if (count > 0) memcpy(made->words, words, count * sizeof *words);
    return made;
}

log_entry *log_make(log_kind kind, function_id function, const word *words, size_t count, size_t bytes) {
    const uint64_t size = sizeof(log_entry) + count * sizeof *words + bytes;
    log_entry *const made = size <= LOG_BYTES ? calloc(1, size) : NULL;
    if (made == NULL) return NULL;
    *made = (log_entry){.size = (uint32_t)size, .function = (uint16_t)function, .kind = (uint8_t)kind, .count = (uint8_t)count};
    if (count > 0) memcpy(made->words, words, count * sizeof *words);
    return made;
}

void *log_bytes(log_entry *entry) { return &entry->words[entry->count]; }

log_entry *log_next(const log_entry *entry) {
    const uint64_t at = entry == NULL ? 0 : (uint64_t)((const unsigned char *)entry - room) + entry->size;
    return at < atomic_load(&used) ? (log_entry *)(void *)(room + at) : NULL;
}
