// The copies of the driver beside the first one, made ready: loaded, initialised, with a context on the program's device.
#pragma once

#include "second/copies.h"

// The program's device as the first driver counts. Before anything else here.
void beside_begin(int device);

// Makes the one at a place ready, or did so before; false, with a reason, if that fails, and then for good. Callers hold the lock
// of a takeover.
bool beside_make(copy_place place);

// The share of the SMs, in hundredths of a percent, for the one at the lane that is made next; 0: as the one at hand.
void beside_want_share(unsigned share);

// Whether the one at the lane is made, and with the share that is wanted.
bool beside_has_share(void);

// The one at the lane is at hand from now on, and another one can be made.
void beside_go_on(void);

// Ends the context of the one at the lane, if it was made; another one may be made in its place. Nothing holds anything of it any more.
void beside_give_up(void);
bool beside_is_made(copy_place place);

// Whether it was tried to make the one at the lane.
bool beside_is_tried(void);

// The number of the one at the lane; 0: none is made. Without a lock.
unsigned beside_number(void);

// Works with it from now on: its context is current in this thread.
bool beside_enter(copy_place place);

// Ends the context of the one outside of MPS.
void beside_end_alone(void);
