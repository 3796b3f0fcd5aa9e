// The takeover: after a fault of a neighbour, a second driver in the same process goes on where the first one ended.
#pragma once

#include "second/copies.h"

typedef enum { SECOND_OFF, SECOND_COLD, SECOND_HOT } second_mode;

// As MPSGUARD_SECOND_DRIVER says; off where it is not set, and in a child of a process that has used the driver.
second_mode takeover_mode(void);

// The copy that calls go to: the first one until a takeover.
const driver_copy *takeover_copy(void);

// Whether that is the second one.
bool takeover_happened(void);

// Whether that was a move, without a fault: then the first one may say that its client has ended.
bool takeover_was_move(void);

// The program has retained its primary context: from now on its variables are saved, and, if hot, the second driver is
// prepared.
void takeover_begin(word context, int device);

// The program's primary context as it knows it; 0: none yet.
word takeover_context(void);

// A call returned an error that says that the context is lost. True if another driver is at hand now, so that the call is to be
// repeated; false if the program is to see the error. All threads but the first wait here meanwhile.
bool takeover_after(mg_result result);

// After a call that waited: an epoch, if one is due and no stream has work.
void takeover_at_wait(void);

// A call failed for want of GPU memory: true if there is more now.
bool takeover_spare_given_up(void);

// Waits until no takeover is under way: for a call that work_begin turned away.
void takeover_wait(void);

// The device of the program's context.
word takeover_device(void);

// Makes the second driver's context current in this thread, as the program's is in the first one.
void takeover_enter(void);
