// What the preload did and why it did not, as numbers. They only grow.
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// X(name): the order is part of the zone table's layout and of mpsguard/preload/zone_table.py. Append only.
#define COUNTERS(X)                                                                                            \
    X(placed)           /* allocations served from a region of their own */                                    \
    X(placed_small)     /* allocations served from a slab */                                                   \
    X(freed)            /* of both */                                                                          \
    X(reused)           /* regions made from reserved addresses that were kept */                              \
    X(deferred)         /* frees put off: during a stream capture, or because the driver refused once */       \
    X(shed)             /* zones disarmed because the card's free memory had fallen below what is armed */     \
    X(plain_small)      /* plain allocations, and why: slabs are switched off */                               \
    X(plain_async)      /* stream-ordered allocation with a driver that does not tell streams apart */         \
    X(plain_ipc)        /* not counted any more: memory of regions can be exported */                          \
    X(plain_capture)    /* a stream capture in which the driver lets none be allocated, or puts it into the graph */ \
    X(plain_devices)    /* the program uses several devices, or one that another one could not reach */        \
    X(plain_device)     /* the device lacks what a zone needs */                                               \
    X(plain_caller)     /* the calling library is one that gets plain memory */                                \
    X(plain_context)    /* green contexts are in use */                                                        \
    X(plain_unarmed)    /* no more may be armed, or the driver would not arm it */                             \
    X(plain_driver)     /* a driver call on our way failed */                                                  \
    X(plain_memory)     /* no host memory for our own records */                                               \
    X(ipc_refused)      /* cuIpcGetMemHandle on a region that cannot be exported */                            \
    X(unlisted)         /* regions that found the zone table full */                                           \
    X(rebound)          /* symbols bound past us by RTLD_DEEPBIND, and bound to us again */                    \
    X(settings_refused) /* variables with a value that is not allowed */                                       \
    X(plain_pool)       /* a memory pool that is exported, limited, elsewhere, reached by others, or unknown */ \
    X(plain_stream)     /* a stream that is not of the current context, or that not the primary one */         \
    X(ordered)          /* of what was placed: allocations in stream order */                                  \
    X(ordered_reused)   /* of these: from memory that had been freed in stream order */                        \
    X(ordered_released) /* memory freed in stream order and given back to the driver */                        \
    X(ordered_unmarked) /* frees in stream order; only a later one, or a synchronisation, will show their end */ \
    X(ordered_lost)     /* frees in stream order without effect: no host memory for our own records */         \
    X(ipc_exported)     /* handles given by cuIpcGetMemHandle for memory of ours */                            \
    X(ipc_imported)     /* memory of another process under the preload mapped by cuIpcOpenMemHandle */         \
    X(snapshot_exported) /* regions handed to a process that takes a snapshot */                               \
    X(unopened)         /* regions that could not be opened to a device that came later */

typedef enum {
#define COUNTER_NAME(name) COUNT_##name,
    COUNTERS(COUNTER_NAME)
#undef COUNTER_NAME
        COUNTER_COUNT
} counter;

void counter_add(counter which);
uint64_t counter_get(counter which);

// From now on, counters are kept in `shared` too, which starts with what there is; not in a process where `owner` is 0.
void counters_share(_Atomic uint64_t *shared, const _Atomic uint64_t *owner);

// Appends one line of JSON to the file; nothing if it cannot be opened.
void counters_report(const char *path);
