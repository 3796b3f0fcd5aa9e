// The record of regions and zones that the guard reads from outside: a sealed memfd of fixed layout.
//
// A memfd and not a file: it needs no directory, no name that another process could take, no cleaning up after a crash,
// and the guard, which copies descriptors of its clients anyway, finds it by its name in /proc/PID/fd. It cannot be
// shrunk or grown, so a reader that maps it never meets SIGBUS. mpsguard/preload/zone_table.py reads it.
//
// Layout, little-endian: a header of ZONE_TABLE_HEADER bytes (magic u64, version u32, header bytes u32, slot bytes u32,
// slots u32, pid u32, counters u32; from byte 32 the name of the service's socket, 16 bytes, zeros for none; from byte 64
// the counters, u64 each; from byte 3968 the answer to a request for a move, second/request.h; from byte 4032 the claim of the second
// driver, second/claim.h), then the slots. A slot is written between two
// increments of its sequence number, which is odd meanwhile.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ZONE_TABLE_NAME "mpsguard-zones"
#define ZONE_TABLE_MAGIC UINT64_C(0x314e4f5a4753504d)  // "MPSGZON1"

enum {
    ZONE_TABLE_VERSION = 1,
    ZONE_TABLE_HEADER = 4096,
    ZONE_TABLE_SERVICE = 32,
    ZONE_TABLE_COUNTERS = 64,
    ZONE_TABLE_MOVE = 3968,
    ZONE_TABLE_CLAIM = 4032,
    ZONE_TABLE_SLOTS = 8192,
};

enum { ZONE_LIVE = 1, ZONE_FRONT_ARMED = 2, ZONE_BACK_ARMED = 4, ZONE_SLAB = 8 };

// One region as the table has it; sizes in bytes. For a slab, `user` and `size` are of all that is in it.
typedef struct {
    uint64_t start;   // of the reserved addresses, where the front zone begins
    uint64_t front;   // length of the front zone
    uint64_t memory;  // length of the memory behind it
    uint64_t back;    // length of the back zone behind that
    uint64_t user;    // address the program got
    uint64_t size;    // bytes the program asked for
    uint32_t flags;   // ZONE_*
    uint32_t number;  // of the region, counted from 1; wraps
    int32_t device;
} zone_entry;

typedef struct {
    _Atomic uint32_t sequence;
    _Atomic uint32_t flags;
    _Atomic uint64_t start, front, memory, back, user, size;
    _Atomic uint32_t number;
    _Atomic int32_t device;
} zone_slot;

// Written between two increments of its sequence number, as a slot.
typedef struct {
    _Atomic uint32_t sequence;
    _Atomic uint8_t phase, mode;
    _Atomic uint16_t repetition;
    _Atomic uint64_t reason[4];  // its name, with NULs behind it
} zone_claim;

typedef struct {
    _Atomic uint64_t token, answer;     // of the answer the number comes first, and it is written last
    _Atomic uint32_t prepared, paused;  // in microseconds
    _Atomic uint64_t reason[4];         // its name, with NULs behind it
} zone_move;

typedef struct {
    _Atomic(uint8_t *) base;  // NULL: there is no table yet, or none at all, and writing does nothing
    uint32_t next;  // slots below it were used before
    uint32_t *free;
    uint32_t free_count;
} zone_table;

// Makes the table of this process, and shares the counters through it. Without a table everything works but the guard's
// reading. The descriptor stays open without an owner: it is how the guard finds the table. `owner` is 0 in children of this
// process.
void zone_table_open(zone_table *table, const _Atomic uint64_t *owner);

// Writes the name of this process's service (service.h) into the table.
void zone_table_name(zone_table *table, const uint8_t name[16]);

// Writes the claim of the second driver. Callers write one at a time. False if there is no table.
bool zone_table_claim(zone_table *table, uint8_t phase, uint8_t mode, uint16_t repetition, const char *reason);

// The word by which this process knows that it is asked; and its answer. Callers write one at a time.
void zone_table_token(zone_table *table, uint64_t token);
void zone_table_answer(zone_table *table, uint64_t answer, uint32_t prepared, uint32_t paused, const char *reason);

// Enters a region; returns its slot, or -1 if there is no table or no room. Callers write one at a time.
int32_t zone_table_add(zone_table *table, const zone_entry *entry);

// Writes an entry anew.
void zone_table_change(zone_table *table, int32_t slot, const zone_entry *entry);

// Changes the flags of an entry; 0 takes it out.
void zone_table_mark(zone_table *table, int32_t slot, uint32_t flags);
