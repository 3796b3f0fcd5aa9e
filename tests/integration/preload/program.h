// What the scenarios of the test program share.
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "reach.h"
#include "stub_libcuda.h"

#define MIB ((size_t)1 << 20)
// A release threshold under which a pool gives nothing back.
#define KEEP_ALL UINT64_MAX

// Ends the program with the place and the condition that did not hold.
#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxGetCurrent(void **);
extern int cuCtxCreate_v2(void **, unsigned, int), cuCtxCreate_v4(void **, void *, unsigned, int), cuThreadExchangeStreamCaptureMode(int *), cuStreamBeginCapture(void *);

typedef struct {
    const char *name;
    void (*run)(const api *);
} scenario;

// Ends a list; each file of scenarios has one.
extern const scenario scenarios_of_memory[], scenarios_of_fallback[], scenarios_of_processes[],
    scenarios_of_order[], scenarios_of_order_edges[], scenarios_of_pools[], scenarios_at_random[], scenarios_of_random_order[],
    scenarios_of_ipc[], scenarios_of_snapshots[], scenarios_of_races[];

// A new allocation, written from its first to its last byte.
uint64_t allocated(const api *cuda, size_t size);

// A new stream of the current context that waits for no other.
void *new_stream(const api *cuda);

// A new allocation of ours in stream order, written at both ends.
uint64_t ordered(const api *cuda, size_t size, void *stream);

// The release threshold of the device's default pool.
void set_threshold(const api *cuda, uint64_t bytes);

// Whether a region (and not plain memory) holds the address: then memory of it is mapped by a handle.
bool is_placed(uint64_t address);

// Frees what is kept and checks that the driver holds nothing for us any more.
void check_nothing_left(const api *cuda);
