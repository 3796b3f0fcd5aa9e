// The takeover: after a fault of a neighbour, a second driver in the same process goes on where the first one ended.
#pragma once

#include "second/takeover_state.h"

// The program has retained its primary context: from now on its variables are saved, and, if hot, the second driver is
// prepared.
void takeover_begin(word context, int device);

// A call of that copy returned an error that says that the context is lost. True if another driver is at hand now, so that the call is to be
// repeated; false if the program is to see the error. All threads but the first wait here meanwhile.
bool takeover_after(const driver_copy *lost);

// After a call that waited: an epoch, if one is due and no stream has work.
void takeover_at_wait(void);

// Waits until no takeover is under way: for a call that work_begin turned away.
void takeover_wait(void);

// Makes the context of the copy at work current in this thread, as the program's is in the first one.
void takeover_enter(void);
