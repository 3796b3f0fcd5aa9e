#define _GNU_SOURCE
#include "second/steps.h"

#include <time.h>

double steps_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

steps steps_begin(void) {
    const double start = steps_now();
    return (steps){.began = start, .last = start};
}

bool steps_end(steps *of, double *step, bool done) {
    const double end = steps_now();
    *step = end - of->last;
    of->last = end;
    return done;
}

double steps_since(const steps *of) { return steps_now() - of->began; }
