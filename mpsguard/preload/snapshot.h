// What a process that takes a snapshot (mpsguard/images/snapshot) is given: one region's memory for one request.
//
// The zone table says which regions there are; the name of the service's socket stands in it, too. The memory goes out
// as a descriptor that the driver makes, so that this process copies nothing and stops for nothing. Served
// are processes that may read this one's memory anyway: those of its own user, and root's.
#pragma once

#include "process.h"

#define SNAPSHOT_MAGIC "mpsgSNP\1"

// 24 bytes, little-endian as all of it: mpsguard/images/snapshot/memory_requests.py has the same.
typedef struct {
    char magic[8];
    uint64_t start;   // of the region's reserved addresses, as the zone table has it
    uint32_t number;  // of the region
    uint32_t reserved;
} snapshot_request;

enum {
    SNAPSHOT_GONE = -1,        // there is no such region any more
    SNAPSHOT_SLAB = 1,         // flags: small allocations share it
    SNAPSHOT_SET_ASIDE = 2,    // it was freed in stream order, and is held
    SNAPSHOT_ORDERED = 4,      // it was allocated in stream order
};

typedef struct {
    int32_t result;   // of the driver; with 0 comes a descriptor
    uint32_t flags;
    uint64_t memory;  // bytes behind the descriptor
    uint64_t offset;  // of the allocation in it
    uint64_t user;    // address of the allocation
    uint64_t size;    // of the allocation
    uint8_t gpu[16];  // UUID; zeros if the driver does not say
} snapshot_reply;

_Static_assert(sizeof(snapshot_request) == 24 && sizeof(snapshot_reply) == 56, "as memory_requests.py has them");

// Answers one request.
void snapshot_answer(process *p, int client, const snapshot_request *asked);
