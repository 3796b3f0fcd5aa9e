// Which driver the program uses, and the lock under which that changes, or the second one is made ready for it.
#pragma once

#include "second/copies.h"

typedef enum { SECOND_OFF, SECOND_COLD, SECOND_HOT } second_mode;

// As MPSGUARD_SECOND_DRIVER says; off where it is not set, and in a child of a process that has used the driver.
second_mode takeover_mode(void);

// Whether calls go to another copy than the first one.
bool takeover_happened(void);

// Whether that was a move, without a fault: then the first one may say that its client has ended.
bool takeover_was_move(void);

// Whether there was a fault, and the program has seen it.
bool takeover_was_refused(void);

// The program's primary context as it knows it (0: none yet), and its device. `takeover_set_context` is false, and changes nothing,
// if there was one; it returns that.
word takeover_context(void);
word takeover_device(void);
bool takeover_set_context(word context, int device, word *before);

// Whether this process has made that context, and not its parent.
bool takeover_is_owner(void);

// Under the lock: calls go to the second driver from now on; or the program sees the fault.
void takeover_commit(bool is_move);
void takeover_refuse(void);

// At the end, this thread works with the copy at hand again.
void takeover_lock(void);
void takeover_unlock(void);
bool takeover_try_lock(void);

// For a call of the program, which is not to wait for what is only prepared.
void takeover_lock_at_once(void);

// Whether what is only prepared has to wait: a call wants the lock, or the process ends.
bool takeover_has_to_wait(void);

// The second driver has been begun, and ends with the process: no call into it is to be under way then.
void takeover_ends_with_process(void);
