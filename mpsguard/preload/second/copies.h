// The copies of the driver in this process, as tables of functions, and how one is called.
//
// Every parameter of the driver's API is passed in a general register or in eight bytes of the stack (the few functions of
// which that is not true are not listed in functions.h), so a call is made of words, whatever their types.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver_api.h"

typedef uint64_t word;

#define WORD(pointer) ((word)(uintptr_t)(pointer))
#define POINTER(value) ((void *)(uintptr_t)(value))

typedef enum {
#define DRIVER_FUNCTION(name, ...) FUNCTION_##name,
#include "second/functions.h"
#undef DRIVER_FUNCTION
    FUNCTION_COUNT
} function_id;

enum { MOST_PARAMETERS = 16 };

// Where a copy has its context.
typedef enum {
    PLACE_LANE,   // on a lane: the driver that the program uses, or will go on with
    PLACE_ALONE,  // outside of MPS, while work is repeated there (alone.h)
    PLACE_COUNT
} copy_place;

// None is ever unloaded: each costs its pages (some 80 MiB with 580) until the process ends.
enum { MOST_COPIES = 8, COPIES = MOST_COPIES + 1 };

// A copy, for as long as the process lives. Once calls go to it, nothing of it changes: a thread may be in a call of it still when
// they go to another one.
typedef struct {
    void *function[FUNCTION_COUNT];  // NULL: this release has none such
    unsigned number;                 // 0: the one that the program has loaded; the others as they were loaded
    copy_place place;
    word device;                     // what it calls the program's device: outside of MPS, devices are counted in another way
    word context;                    // on that device, instead of the program's; 0: none yet
    const char *directory;           // its CUDA_MPS_PIPE_DIRECTORY; empty: as the environment has it
    unsigned share;                  // of the SMs, in hundredths of a percent; 0: as the environment has it
    _Atomic bool is_filled;          // modules that are made in it get the content that the program's have
} driver_copy;

// The one that the program has loaded.
extern driver_copy first_copy;

// The one that calls of the program go to: the first one until a takeover.
driver_copy *copies_at_hand(void);
void copies_go_on_with(driver_copy *copy);

// Another one than the first, by its number.
const driver_copy *copies_numbered(unsigned number);

// The one that this thread works with: the one at hand, or one that is being made ready, under the lock of a takeover (NULL: the one at
// hand again).
driver_copy *copies_at_work(void);
void copies_work_with(driver_copy *copy);

// Calls a function with `count` words; MG_NOT_SUPPORTED if the copy has none such.
mg_result copies_call(const driver_copy *copy, function_id id, const word *words, size_t count);

#define CALL(copy, name, ...)                                                                       \
    copies_call(copy, FUNCTION_##name, (const word[]){__VA_ARGS__}, sizeof((const word[]){__VA_ARGS__}) / sizeof(word))

// Finds the functions of the driver that the program has loaded; false if there is none. `next`: as the program's symbols would
// be bound without the preload, so that a library that another tool puts before the driver is not passed by.
bool copies_find_first(bool next);

// Loads another copy of the driver's file, with its own name for the socket that each process has once, and with `pipe_directory` for
// CUDA_MPS_PIPE_DIRECTORY, `devices` for CUDA_VISIBLE_DEVICES (NULL: as the environment has it) and `share`, in hundredths of a percent, for
// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE (0: likewise). `device` is what it will call the program's. NULL if that fails, or too many were loaded.
driver_copy *copies_load(copy_place place, const char *pipe_directory, const char *devices, unsigned share, int device);

// How many more can be loaded.
int copies_left(void);

// Whether a result says that the context is lost, by a fault of its own or of a neighbour's work: see docs/reference/faults.md.
bool copies_is_loss(mg_result result);

// Addresses that the first copy has reserved, and that the others may have as well. Before they are loaded.
void copies_share_addresses(uint64_t start, uint64_t size);

const char *copies_name(function_id id);
