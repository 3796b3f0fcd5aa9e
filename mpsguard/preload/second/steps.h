// How long the steps of a takeover took, for its report.
#pragma once

#include <stdbool.h>

// Milliseconds of the clock that never goes back.
double steps_now(void);

// Milliseconds; those of the steps are of the last place at which the program's state was made.
typedef struct {
    double began, last;  // of the clock
    double quiet;        // until the calls under way had returned
    double alone;        // of all that is done alone
    double context, memory, objects, replay;
    long calls;  // of the log, that were made again
} steps;

steps steps_begin(void);

// The time since the step before is that of this one, however it ended: `done`, which is returned.
bool steps_end(steps *of, double *step, bool done);

double steps_since(const steps *of);
