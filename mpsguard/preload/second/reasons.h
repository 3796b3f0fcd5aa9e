// Why a program cannot be taken over, as the guard and the reader see it. A reason is there for good, or as long as
// something holds it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// X(name): the names are public. The first block are those of roles.toml.
#define REASONS(X)                                                                                       \
    X(graphs)                                                                                            \
    X(arrays)                                                                                            \
    X(managed_memory)                                                                                    \
    X(shared_with_others)                                                                                \
    X(several_devices)                                                                                   \
    X(several_contexts)                                                                                  \
    X(memory_pools)                                                                                      \
    X(host_callbacks)                                                                                    \
    X(stream_memory_operations)                                                                          \
    X(device_settings)                                                                                   \
    X(modules_from_files)                                                                                \
    X(device_variables)                                                                                  \
    X(old_launches)                                                                                      \
    X(driver_checkpoints)                                                                                \
    X(batched_copies)                                                                                    \
    X(unknown)            /* a function that roles.toml does not name */                                 \
    X(plain_memory)       /* memory that the driver placed: it ends with the first driver */             \
    X(pinned_memory)      /* host memory that the driver allocated */                                    \
    X(placed_reservations) /* addresses that the program chose itself */                                 \
    X(no_other_lane)      /* no directory for a second driver: no guard, or one with a single lane */    \
    X(no_addresses)       /* the addresses for memory could not be reserved */                           \
    X(image_options)      /* a module that was compiled with options that cannot be kept */              \
    X(unread_modules)     /* a module in which variables could not be looked for */                      \
    X(device_heap)        /* a kernel that may allocate on the device */                                 \
    X(changed_variables)  /* variables of a module were not saved since kernels last ran */              \
    X(enumerated_functions) /* kernels found by no name */                                               \
    X(launch_events)      /* a launch that records an event of its own */                                \
    X(no_memory)          /* no host memory for what has to be noted */                                  \
    X(work_in_flight)     /* at the fault, work was under way in a stream: it may be torn */             \
    X(log_full)           /* more was done since the last epoch than the log holds */                    \
    X(unlogged)           /* since the last epoch, something was done that cannot be repeated */         \
    X(host_memory_in_kernels) /* a kernel was given an address of host memory */                         \
    X(no_spare_memory)    /* too little for the content of an epoch */                                   \
    X(replay_diverged)    /* repeated, the work gave something else than the program has seen */         \
    X(repeated_fault)     /* repeated alone, the work faulted again */                                   \
    X(not_repeated)       /* it could not be repeated alone */                                           \
    X(proven_culprit)     /* the guard knows that this program caused the fault */                       \
    X(second_failed)      /* the second driver could not be made or refused something */                 \
    X(no_copies_left)     /* so many copies of the driver were loaded that there is no other one */

typedef enum {
#define REASON_NAME(name) REASON_##name,
    REASONS(REASON_NAME)
#undef REASON_NAME
        REASON_COUNT
} reason;

// Holds a reason; for good, unless it is let go of as often. `detail`: what of the program it is, for its reader.
void reasons_hold(reason which);
void reasons_hold_for(reason which, const char *detail);
void reasons_let_go(reason which);

// How often it is held; and lets go of what is more than that.
int64_t reasons_count(reason which);
void reasons_let_go_to(reason which, int64_t count);

// Whether it is held; whether any is, and which one then.
bool reasons_has(reason which);
bool reasons_any(reason *which);

const char *reasons_name(reason which);

// The newest detail, with no character that JSON would have escaped; empty if there is none.
void reasons_detail(reason which, char *out, unsigned long size);
