// Memory that the second driver has mapped, also host memory (host_memory.h): ahead of a takeover, while the program goes on, and at the takeover itself.
//
// To map one takes 2 to 4 ms, and more where several programs do it at once (H100, 580): nothing to do while a program stands
// still. The program's calls change nothing here; what the second driver has mapped is noted with its number, and compared with
// what the program has by then.
//
// All of it under the lock of a takeover, and with the context of the second driver current. What fails ahead is done at the takeover.
#pragma once

#include "second/mappings.h"

// One look: what had been mapped before the last one is old enough to be mapped ahead.
void ahead_look(void);

// One step ahead, in the lane: unmaps what the program has no more, or maps one.
typedef enum { AHEAD_DONE, AHEAD_UNMAPPED, AHEAD_MAPPED } ahead_result;
ahead_result ahead_step(void);

// Whether the program may have freed something that is mapped there. Without a lock.
bool ahead_is_behind(void);

// Unmaps there what the program has no more; `retired` counts as what it has. False if there was none.
bool ahead_drop(bool with_retired);

// What is made ahead of memory, such as an instance of a graph: whether the lane's copy has all that the program has from an address on,
// which is noted then in `uses`. And whether nothing of that has been unmapped there, or mapped anew, since.
bool ahead_use(list *uses, word at, uint64_t size);
bool ahead_stands(const list *uses);

// Counts what was mapped there, or unmapped.
word ahead_changes(void);

// At the takeover, into the copy at hand, under mappings_lock: maps it unless it is there, or its spare memory.
bool ahead_map(const mapping *m);
bool ahead_map_spare(const mapping *m);
bool ahead_unmap(const mapping *m);

// Likewise, of one that the repetition maps, and unmaps again: what is mapped where it will be is unmapped, and does not stand.
bool ahead_make_way(const mapping *m);

// At the commit: what the copy at work has mapped is the program's own affair from now on. But the spare memory: `ahead_end` unmaps that,
// in the copy at hand.
void ahead_go_on(void);
void ahead_end(void);

// There was no takeover: nothing stays mapped there. `reachable`: it can be unmapped.
void ahead_give_up(bool reachable);
