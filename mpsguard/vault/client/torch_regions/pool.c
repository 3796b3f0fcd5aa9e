// Memory of mapped regions for PyTorch's allocator (torch.cuda.memory.CUDAPluggableAllocator).
//
// In C, because the caching allocator calls these functions with its lock held. A Python callback would need the
// interpreter lock, and a thread that holds the interpreter lock and frees a tensor waits for the allocator's lock.
// PyTorch requests multiples of 2 MiB and subdivides them itself, so first fit over units of 2 MiB is enough.
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#define EXPORTED __attribute__((visibility("default")))
#define UNIT ((uint64_t)2 << 20)
#define MOST_POOLS 64

typedef struct {
    uint64_t base;
    uint32_t units;
    uint32_t used;
    uint32_t *length;  // units of the allocation that starts at this unit, 0 if none does; NULL: no pool
    int device;
    int (*synchronize)(void);
} pool;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pool pools[MOST_POOLS];
static _Thread_local int current = -1;

// Creates a pool on the whole units in `size` bytes from `base` on. `synchronize` (may be NULL) waits for the current
// context's work. Returns the pool's number, or -1 if there are too many pools or no memory.
EXPORTED int mpsguard_pool_open(uint64_t base, uint64_t size, int device, int (*synchronize)(void)) {
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_POOLS && found < 0; ++i)
        if (pools[i].length == NULL) found = i;
    if (found >= 0 && size / UNIT > 0 && size / UNIT < UINT32_MAX) {
        uint32_t *const length = calloc(size / UNIT, sizeof *length);
        if (length == NULL) found = -1;
        else pools[found] = (pool){base, (uint32_t)(size / UNIT), 0, length, device, synchronize};
    } else {
        found = -1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_pool(int number) { return number >= 0 && number < MOST_POOLS && pools[number].length != NULL; }

// Returns the allocated bytes.
EXPORTED uint64_t mpsguard_pool_used(int number) {
    pthread_mutex_lock(&lock);
    const uint64_t used = is_pool(number) ? pools[number].used * UNIT : 0;
    pthread_mutex_unlock(&lock);
    return used;
}

// Removes a pool and returns 0; returns -1 and keeps it if any of it is allocated.
EXPORTED int mpsguard_pool_close(int number) {
    pthread_mutex_lock(&lock);
    const bool can = is_pool(number) && pools[number].used == 0;
    if (can) {
        free(pools[number].length);
        pools[number] = (pool){0};
    }
    pthread_mutex_unlock(&lock);
    return can ? 0 : -1;
}

// Selects the pool for this thread's allocations (-1: none); returns the previous one.
EXPORTED int mpsguard_pool_enter(int number) {
    const int before = current;
    current = number;
    return before;
}

// Allocates by first fit; `units` is at least 1. Returns 0 if nothing fits.
static uint64_t take(pool *p, uint64_t units) {
    uint64_t run = 0;
    for (uint64_t i = 0; i < p->units;) {
        if (p->length[i] != 0) {
            i += p->length[i];
            run = 0;
        } else if (++run == units) {
            const uint64_t start = i + 1 - units;
            p->length[start] = (uint32_t)units;
            p->used += (uint32_t)units;
            return p->base + start * UNIT;
        } else {
            ++i;
        }
    }
    return 0;
}

// Called by PyTorch: allocates `size` bytes; NULL is reported as out of memory.
EXPORTED void *mpsguard_pool_allocate(ssize_t size, int device, void *stream) {
    (void)stream;
    uint64_t at = 0;
    pthread_mutex_lock(&lock);
    if (size > 0 && is_pool(current) && pools[current].device == device)
        at = take(&pools[current], ((uint64_t)size + UNIT - 1) / UNIT);
    pthread_mutex_unlock(&lock);
    return (void *)(uintptr_t)at;
}

// Called by PyTorch on any thread: frees memory from `mpsguard_pool_allocate`. Like cudaFree, it waits for work that
// may still use the memory; PyTorch relies on that.
EXPORTED void mpsguard_pool_free(void *memory, ssize_t size, int device, void *stream) {
    (void)size;
    (void)device;
    (void)stream;
    const uint64_t at = (uint64_t)(uintptr_t)memory;
    int (*synchronize)(void) = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_POOLS; ++i)
        if (is_pool(i) && at >= pools[i].base && at - pools[i].base < pools[i].units * UNIT)
            synchronize = pools[i].synchronize;
    pthread_mutex_unlock(&lock);
    if (synchronize != NULL) (void)synchronize();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_POOLS; ++i) {
        pool *const p = &pools[i];
        if (!is_pool(i) || at < p->base || (at - p->base) % UNIT || at - p->base >= p->units * UNIT) continue;
        const uint64_t unit = (at - p->base) / UNIT;
        p->used -= p->length[unit];
        p->length[unit] = 0;
    }
    pthread_mutex_unlock(&lock);
}
