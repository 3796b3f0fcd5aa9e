#define _GNU_SOURCE
#include "counters.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static _Atomic uint64_t counts[COUNTER_COUNT];
static _Atomic(_Atomic uint64_t *) shared_counts;
static const _Atomic uint64_t *sharing_process;

void counter_add(counter which) {
    atomic_fetch_add_explicit(&counts[which], 1, memory_order_relaxed);
    _Atomic uint64_t *const shared = atomic_load_explicit(&shared_counts, memory_order_acquire);
    // A child has the memory still, which counts for its parent.
    if (shared != NULL && atomic_load_explicit(sharing_process, memory_order_relaxed) != 0)
        atomic_fetch_add_explicit(&shared[which], 1, memory_order_relaxed);
}

uint64_t counter_get(counter which) { return atomic_load_explicit(&counts[which], memory_order_relaxed); }

void counters_share(_Atomic uint64_t *shared, const _Atomic uint64_t *owner) {
    sharing_process = owner;
    for (size_t i = 0; i < COUNTER_COUNT; ++i) atomic_store_explicit(&shared[i], counter_get((counter)i), memory_order_relaxed);
    atomic_store_explicit(&shared_counts, shared, memory_order_release);
}

void counters_report(const char *path) {
    static const char *const names[] = {
#define COUNTER_TEXT(name) #name,
        COUNTERS(COUNTER_TEXT)
#undef COUNTER_TEXT
    };
    char line[2048];
    int length = snprintf(line, sizeof line, "{\"pid\":%d", (int)getpid());
    for (size_t i = 0; i < COUNTER_COUNT && length < (int)sizeof line; ++i)
        length += snprintf(line + length, sizeof line - (size_t)length, ",\"%s\":%llu", names[i],
                           (unsigned long long)counter_get((counter)i));
    if (length >= (int)sizeof line - 2) return;
    line[length++] = '}';
    line[length++] = '\n';
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    if (file < 0) return;
    // One write: lines of processes that end together do not mix.
    const ssize_t written = write(file, line, (size_t)length);
    (void)written;  // the process is ending, and there is nothing left to tell
    close(file);
}
