// Repetition alone: work in flight of a program that may have caused the fault is done again where no other work is, in a copy of
// the driver outside of MPS (docs/concepts/repetition.md).
#pragma once

#include <stdbool.h>

#include "second/steps.h"

// Whether it has to be: unless the program is trusted (MPSGUARD_SECOND_REPETITION=beside), or the guard says that it may repeat its
// work beside others, as one that is proven innocent. A reason is held if it may not repeat it at all.
bool alone_is_wanted(void);

// Does it: puts the last epoch back and repeats the log. True if it is completed: memory and variables are then as if no fault had been,
// and nothing is left to repeat. Else a reason is held.
bool alone_repeat(steps *of);
