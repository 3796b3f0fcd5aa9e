// The preload's thread that looks whether the program stands still: seen by the pauses that it makes between two looks.
//
// It calls the program's nanosleep: the program is linked so that others find it.
#pragma once

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// LOOK_MS in mpsguard/preload/second/takeover.c; all other pauses of threads are shorter.
#define LOOK_NS 20000000

static _Atomic unsigned long pauses;
static _Atomic pid_t looker;

int nanosleep(const struct timespec *time, struct timespec *left) {
    if ((time->tv_sec > 0 || time->tv_nsec >= LOOK_NS) && gettid() != getpid()) {
        atomic_store(&looker, gettid());
        atomic_fetch_add(&pauses, 1);
    }
    errno = clock_nanosleep(CLOCK_REALTIME, 0, time, left);
    return errno == 0 ? 0 : -1;
}

static bool looker_has_ended(void) {
    char path[64];
    const pid_t thread = atomic_load(&looker);
    snprintf(path, sizeof path, "/proc/self/task/%d", (int)thread);
    return thread != 0 && access(path, F_OK) != 0;
}

// One look may have begun before; the second of those behind it sees that nothing has come, and reads variables or makes an epoch.
static void await_looks(void) {
    const struct timespec again = {.tv_nsec = 1000000};
    const char *const mode = getenv("MPSGUARD_SECOND_DRIVER");
    const unsigned long before = atomic_load(&pauses);
    if (mode == NULL || strcmp(mode, "off") == 0) return;
    for (int i = 0; i < 60000 && atomic_load(&pauses) < before + 4 && !looker_has_ended(); ++i) clock_nanosleep(CLOCK_REALTIME, 0, &again, NULL);
}
