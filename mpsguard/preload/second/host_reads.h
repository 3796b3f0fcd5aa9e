// Copies to the host in the log (LOG_TO_HOST): what the program was given, by which a repetition is judged.
//
// A copy is seen once it is over at the end of any call that waits: what it gave is kept, for the program may use the memory for
// something else then. Of one that is not seen, what was there before is kept: each byte may be the old one or the repeated one, as a
// program may look without waiting.
#pragma once

#include "second/log.h"

// A copy that is over, or one that may be under way: it is the newest work in that stream, as the driver calls it in this thread.
void host_reads_add_seen(log_entry *entry);
void host_reads_add(log_entry *entry, word stream);

// After a call by which the program may know of the end of work, and before it returns; while that is counted (work.h), so that
// no replay is under way.
void host_reads_look(void);

// Whether a copy that is not seen writes there.
bool host_reads_overlap(word at, uint64_t size);

// The log begins anew; or the program goes on in another copy of the driver, and the events stay behind.
void host_reads_forget(void);
void host_reads_leave(void);

// The memory may be gone soon: copies to it that are not seen are not looked for any more. True if there was one.
bool host_reads_drop(word at, uint64_t size);

// The copy was repeated, and gave that: the program gets it, unless it has seen something else. False then.
bool host_reads_repeat(log_entry *entry, const unsigned char *given);
