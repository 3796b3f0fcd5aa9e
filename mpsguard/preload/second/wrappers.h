// The wrapper of each of the driver's functions. Before a takeover it calls the driver's own function and notes what will be
// needed; afterwards it calls that of the second driver, with that one's handles.
#pragma once

#include <stdbool.h>

// Whether wrappers are to be given out: the second driver is wanted, and the driver is one that they know.
bool wrappers_wanted(void);

// The wrapper of the function with that exported name; NULL: it has none.
void *wrappers_named(const char *name);

// The program was given a function of the driver that has no wrapper: what it does is not seen.
void wrappers_note_unknown(const char *symbol);

// The wrapper of the driver's function at that address; NULL: it is none of those.
void *wrappers_of(const void *function);
