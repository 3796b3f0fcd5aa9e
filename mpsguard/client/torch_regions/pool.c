// Memory of mapped regions for PyTorch's allocator (torch.cuda.memory.CUDAPluggableAllocator).
//
// In C, because the caching allocator calls it with its own lock held: a callback into Python would take the
// interpreter's lock there, and a thread that has that one and frees a tensor waits for the allocator's. PyTorch asks for
// segments of 2 MiB and multiples, and divides them itself, so first fit over units of 2 MiB is enough.
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
    uint32_t *length;  // of the allocation that starts at this unit; 0: none starts here. NULL: no pool
    int device;
    int (*synchronize)(void);
} pool;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pool pools[MOST_POOLS];
static _Thread_local int current = -1;

// A pool on `size` bytes from `base` on; whole units of them are used. `synchronize` (may be NULL) waits for the work of
// the current context. Returns the pool's number, -1 if there is no room for one.
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

// Bytes that are allocated.
EXPORTED uint64_t mpsguard_pool_used(int number) {
    pthread_mutex_lock(&lock);
    const uint64_t used = is_pool(number) ? pools[number].used * UNIT : 0;
    pthread_mutex_unlock(&lock);
    return used;
}

// Ends a pool. Returns 0, or -1 and leaves it if something of it is allocated.
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

// From which pool this thread's allocations come from now on (-1: none); returns the one it was.
EXPORTED int mpsguard_pool_enter(int number) {
    const int before = current;
    current = number;
    return before;
}

// First fit; `units` is at least 1.
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

// For PyTorch: `size` bytes, or NULL, which it reports as out of memory.
EXPORTED void *mpsguard_pool_allocate(ssize_t size, int device, void *stream) {
    (void)stream;
    uint64_t at = 0;
    pthread_mutex_lock(&lock);
    if (size > 0 && is_pool(current) && pools[current].device == device)
        at = take(&pools[current], ((uint64_t)size + UNIT - 1) / UNIT);
    pthread_mutex_unlock(&lock);
    return (void *)(uintptr_t)at;
}

// For PyTorch: what `mpsguard_pool_allocate` gave, from any thread. Work that may still use it is waited for, as cudaFree
// does; PyTorch relies on that.
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
