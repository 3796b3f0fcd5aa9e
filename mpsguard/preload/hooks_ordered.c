// Hooks of stream-ordered allocation, of its pools, and of the synchronisations at which pools give memory back.
#define _GNU_SOURCE
#include "counters.h"
#include "hooks.h"
#include "ordered.h"
#include "pools.h"
#include "service.h"

// The default stream by the name that does not depend on the caller.
static mg_stream named(mg_stream stream, bool per_thread) {
    if (stream != NULL) return stream;
    return per_thread ? MG_STREAM_PER_THREAD : MG_STREAM_LEGACY;
}

static mg_address allocate(const mg_driver *d, uint64_t size, mg_pool pool, mg_stream stream, const void *caller) {
    if (size == 0 || process_inside) return 0;
    ++process_inside;
    const mg_address address = ordered_allocate(d, size, pool, stream, caller);
    if (address != 0) service_begin();
    --process_inside;
    return address;
}

// A pool of NULL is the driver's to refuse.
#define ALLOCATE(name, member, per_thread, pool, parameters, arguments)                                            \
    EXPORTED mg_result name parameters {                                                                           \
        DRIVER_OR_FAIL(d, member);                                                                                 \
        const mg_address ours =                                                                                    \
            address != NULL ? allocate(d, size, pool, named(stream, per_thread), __builtin_return_address(0)) : 0; \
        if (ours != 0) {                                                                                           \
            *address = ours;                                                                                       \
            return MG_SUCCESS;                                                                                     \
        }                                                                                                          \
        const mg_result result = d->member arguments;                                                              \
        return result == MG_OUT_OF_MEMORY && hooks_make_room(d) ? d->member arguments : result;                    \
    }
#define CURRENT_POOL NULL
ALLOCATE(cuMemAllocAsync, mem_alloc_async, false, CURRENT_POOL,
         (mg_address * address, size_t size, mg_stream stream),
         (address, size, stream))
ALLOCATE(cuMemAllocAsync_ptsz, mem_alloc_async_ptsz, true, CURRENT_POOL,
         (mg_address * address, size_t size, mg_stream stream),
         (address, size, stream))
#define NO_POOL ((mg_pool)-1)
#define THAT_POOL (pool != NULL ? pool : NO_POOL)
ALLOCATE(cuMemAllocFromPoolAsync, mem_alloc_from_pool_async, false, THAT_POOL,
         (mg_address * address, size_t size, mg_pool pool, mg_stream stream),
         (address, size, pool, stream))
ALLOCATE(cuMemAllocFromPoolAsync_ptsz, mem_alloc_from_pool_async_ptsz, true, THAT_POOL,
         (mg_address * address, size_t size, mg_pool pool, mg_stream stream), (address, size, pool, stream))

static bool free_ours(const mg_driver *d, mg_address address, mg_stream stream, mg_result *result) {
    if (address == 0 || process_inside) return false;
    ++process_inside;
    const bool ours = ordered_free(d, address, stream, result);
    --process_inside;
    return ours;
}

#define FREE(name, member, per_thread)                                               \
    EXPORTED mg_result name(mg_address address, mg_stream stream) {                  \
        DRIVER_OR_FAIL(d, member);                                                   \
        mg_result result;                                                            \
        const bool ours = free_ours(d, address, named(stream, per_thread), &result); \
        return ours ? result : d->member(address, stream);                           \
    }
FREE(cuMemFreeAsync, mem_free_async, false)
FREE(cuMemFreeAsync_ptsz, mem_free_async_ptsz, true)

EXPORTED mg_result cuMemPoolCreate(mg_pool *pool, const mg_pool_properties *properties) {
    DRIVER_OR_FAIL(d, mem_pool_create);
    const mg_result result = d->mem_pool_create(pool, properties);
    process *const p = result == MG_SUCCESS && !process_inside ? process_get() : NULL;
    if (p != NULL) pools_made(p, d, *pool, properties);
    return result;
}

// What lives of it stays until it is freed, as with the driver's.
EXPORTED mg_result cuMemPoolDestroy(mg_pool pool) {
    DRIVER_OR_FAIL(d, mem_pool_destroy);
    const mg_result result = d->mem_pool_destroy(pool);
    process *const p = result == MG_SUCCESS && !process_inside ? process_if_any() : NULL;
    if (p != NULL) pools_destroyed(p, pool);
    return result;
}

EXPORTED mg_result cuMemPoolSetAccess(mg_pool pool, const mg_access *access, size_t count) {
    DRIVER_OR_FAIL(d, mem_pool_set_access);
    process *const p = access != NULL && !process_inside ? process_get() : NULL;
    // Before the driver does it: nothing may be served in between that others then cannot reach.
    if (p != NULL) pools_shared(p, d, pool, access, count);
    return d->mem_pool_set_access(pool, access, count);
}

EXPORTED mg_result cuMemPoolSetAttribute(mg_pool pool, int attribute, void *value) {
    DRIVER_OR_FAIL(d, mem_pool_set_attribute);
    const mg_result result = d->mem_pool_set_attribute(pool, attribute, value);
    process *const p = result == MG_SUCCESS && !process_inside ? process_if_any() : NULL;
    // The reuse policies, below these, are of four bytes.
    if (p != NULL && attribute >= MG_POOL_RELEASE_THRESHOLD && attribute <= MG_POOL_USED_HIGH)
        pools_set(p, pool, attribute, *(const uint64_t *)value);
    return result;
}

EXPORTED mg_result cuMemPoolGetAttribute(mg_pool pool, int attribute, void *value) {
    DRIVER_OR_FAIL(d, mem_pool_get_attribute);
    const mg_result result = d->mem_pool_get_attribute(pool, attribute, value);
    process *const p = result == MG_SUCCESS && !process_inside ? process_if_any() : NULL;
    if (p != NULL && attribute >= MG_POOL_RESERVED && attribute <= MG_POOL_USED_HIGH)
        *(uint64_t *)value += pools_get(p, pool, attribute);
    return result;
}

EXPORTED mg_result cuMemPoolTrimTo(mg_pool pool, size_t most) {
    DRIVER_OR_FAIL(d, mem_pool_trim_to);
    if (!process_inside) {
        ++process_inside;
        ordered_trim(d, pool, most);
        --process_inside;
    }
    return d->mem_pool_trim_to(pool, most);
}

// A program's own memory: what we hold without need must not be what it lacks.
EXPORTED mg_result cuMemCreate(mg_handle *handle, size_t size, const mg_allocation_properties *properties,
                               unsigned long long flags) {
    DRIVER_OR_FAIL(d, mem_create);
    const mg_result result = d->mem_create(handle, size, properties, flags);
    return result == MG_OUT_OF_MEMORY && hooks_make_room(d) ? d->mem_create(handle, size, properties, flags) : result;
}

static mg_result synchronized(const mg_driver *d, ordered_kind kind, mg_stream stream, mg_context context,
                              uint64_t point, mg_result result) {
    if (result != MG_SUCCESS || point == 0 || process_inside) return result;
    ++process_inside;
    ordered_synchronized(d, kind, stream, context, point);
    --process_inside;
    return result;
}

#define SYNCHRONIZE(name, member, kind, stream, context, parameters, arguments)    \
    EXPORTED mg_result name parameters {                                           \
        DRIVER_OR_FAIL(d, member);                                                 \
        const uint64_t point = ordered_point();                                    \
        return synchronized(d, kind, stream, context, point, d->member arguments); \
    }
SYNCHRONIZE(cuCtxSynchronize, ctx_synchronize, ORDERED_CONTEXT, NULL, NULL, (void), ())
SYNCHRONIZE(cuCtxSynchronize_v2, ctx_synchronize_v2, ORDERED_CONTEXT, NULL, context, (mg_context context), (context))
SYNCHRONIZE(cuStreamSynchronize, stream_synchronize, ORDERED_STREAM, named(stream, false), NULL,
            (mg_stream stream), (stream))
SYNCHRONIZE(cuStreamSynchronize_ptsz, stream_synchronize_ptsz, ORDERED_STREAM, named(stream, true), NULL,
            (mg_stream stream), (stream))
SYNCHRONIZE(cuEventSynchronize, event_synchronize, ORDERED_EVENT, NULL, NULL, (mg_event event), (event))
