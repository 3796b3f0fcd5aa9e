// What a fault leaves of the program's state, and how the second driver is brought there.
#pragma once

#include "second/steps.h"

typedef enum { RECOVERY_AS_IT_IS, RECOVERY_REPLAYED, RECOVERY_UNKNOWN } recovery_state;

// Whether what is there at the fault is the program's state, or what the last epoch held has to be put back. No call begins meanwhile.
recovery_state recovery_at_fault(void);

// Brings the second driver to what the program's state is, or was at the last epoch and what is in the log.
bool recovery_go_over(bool replay, steps *of);
