// GPU memory that moves, and its addresses: what memory.c and spare.c both know.
//
// GPU memory stays where it is: the first driver exports it after the fault too (580), and the second one maps it. So that its
// addresses can be had there, they are taken from one range that is reserved for all of them: the driver heeds no wish
// for a small one (2 MiB; 64 MiB it does, 580).
#pragma once

#include <pthread.h>

#include "second/copies.h"

#define MAPPINGS_UNIT ((uint64_t)2 << 20)

typedef struct {
    uint64_t at, size, offset;
    mg_access access;     // `flags` 0: none yet
    word number;          // of its entries in the log
    bool since_epoch;     // mapped after the last epoch
    bool untouched;       // nothing could have written to it so far: it is zero, as the driver gives it
    bool was_untouched;   // the same at the last epoch
    word kept;            // of what was unmapped since: a handle that keeps the memory; 0: none
    uint64_t spare;       // address of the memory that holds its content of the last epoch; 0: none
    word spare_number;    // of that memory: addresses are used again
} mapping;

typedef struct {
    char *items;
    size_t count, room;
} list;

#define ITEMS(type, l) ((type *)(void *)(l).items)

// Adds an item and returns it; NULL if there is no host memory (a reason then, but where it is put between others).
void *list_add(list *l, size_t size);
void *list_insert(list *l, size_t size, size_t i);
void list_drop(list *l, size_t size, size_t i);

extern pthread_mutex_t mappings_lock;
// What is mapped, by its number, and what was unmapped since the last epoch. Under the lock.
extern list mappings, retired;

// A number that no mapping and no spare memory had before. Under the lock.
word mappings_number(void);

// The one of a number, or NULL. Under the lock.
mapping *mappings_find(word number);
mapping *mappings_find_retired(word number);

// Counts changes of either, of accesses and of spare memory.
void mappings_changed(void);
word mappings_changes(void);

// Addresses of the range, or 0. Under the lock. `mappings_give_back` is false for what is not of it.
uint64_t mappings_take(uint64_t size, uint64_t alignment);
bool mappings_give_back(uint64_t at, uint64_t size);

// Reserves the range if need be; false if it cannot be had.
bool mappings_have_range(const driver_copy *copy);
bool mappings_reserve_again(void);  // by the copy at hand beside the first one

// Whether an address is in it.
bool mappings_have(word address);

// A handle of the copy at work for memory of the one at hand, which exports it although it is dead (measured with 580).
// `key`: of the memory, if it is to be had by the copies after that, too; else 0. Where a driver does not export what it has imported, the
// descriptor by which it came is kept under its key.
bool mappings_carry(word key, word handle, word *next);

// The number of a mapping is its key; and this is that of a handle which the program has.
word mappings_key_of_handle(word handle);

// The same memory under another key; and a key of which the memory is gone.
void mappings_share_kept(word from, word to);
void mappings_end_kept(word key);

// Maps one into the copy at hand beside the first one, at its address, and gives it its access. `mappings_leave` takes all out of it
// again.
bool mappings_move(const mapping *m);
bool mappings_give_access(const mapping *m);
void mappings_leave(void);
