// What the stub adds to the driver API, for tests only: what it holds, how it is made to fail, what it saw go wrong.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Live objects: "reservations", "handles", "mappings", "plain", "contexts", "armed" (bytes of managed ranges).
long stub_count(const char *kind);

// Calls of a driver function so far.
long stub_calls(const char *function);

// The `nth` call of `function` from now on returns `code` and does nothing.
void stub_fail(const char *function, long nth, int code);

// The next calls of `function`, so many, wait once they are entered, until they are let go one by one in order of coming.
// "cuCtxSynchronize, over" stands for such a call when its wait is over and it has not returned.
void stub_hold(const char *function, int calls);
void stub_let_go(void);

// Returns once so many calls are held.
void stub_wait_held(int calls);

// Work is in flight in the current context until something waits for it.
void stub_launch(void);

// Work that uses the memory at `address` is enqueued in a stream; it is under way until something waits for it, or one of
// these ends that of one stream, or of all.
void stub_work(void *stream, uint64_t address);
void stub_finish(void *stream);
void stub_finish_all(void);

// How far a stream is to be done, for its work so far: the stream by a number that no other one ever has.
typedef struct {
    long stream, number;
} stub_point;
stub_point stub_now(void *stream);
int stub_is_past(stub_point point);

// Whether a device may reach what is mapped at an address.
int stub_reaches(int device, uint64_t address);

// What a real driver would have punished: memory taken away under running work, a capture broken by waiting.
long stub_violations(void);

// cuMemRetainAllocationHandle under a name that is not hooked.
int stub_retain(unsigned long long *handle, void *address);

// What cuMemGetInfo says is free.
void stub_set_free(size_t bytes);

// The stub's own function of that exported name, whatever stands before it; 0 if there is none.
uintptr_t stub_address(const char *exported);
