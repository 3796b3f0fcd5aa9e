// A move: the program goes on in a second driver although the first one is healthy, because the guard asks for it
// (docs/concepts/moves.md). Each step before the commit can be undone.
//
// All of it under the lock of a takeover, by one thread, but for `move_close`.
#pragma once

#include "second/copies.h"
#include "second/memory.h"
#include "second/request.h"

// The step that fails where too few copies of the driver are left.
#define MOVE_NO_COPIES "copies"

// Makes the second driver while the program runs on, with its objects. NULL, or the step that failed; nothing is left then.
const char *move_prepare(unsigned share);

// Stops new calls, and waits until no stream has work; false if there is some after half a second, or a capture. `move_go_on` lets
// them go on in the first driver; after a commit, none may begin there ever again. The first driver's context is current afterwards.
bool move_stop(void);
void move_go_on(void);

// Brings the second driver to what the program's state is, and compares; NULL, or the step that failed.
const char *move_carry(void);

// The second driver is given up, with all that it has.
void move_give_up(void);

// After the commit: the driver that the program has left lets go of what it had (memory_all, before it).
void move_close(const driver_copy *left, memory_list *all);

// And of its connections, by which its server sees the end of a client (580: status 806).
void move_shut_down(void);

// The sockets that the process has now, for `move_shut_down`: before a second driver is made.
void move_note_sockets(void);
