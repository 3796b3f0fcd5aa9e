#define _GNU_SOURCE
#include "hooks.h"

#include "capture.h"
#include "counters.h"
#include "binding/deepbind.h"
#include "ipc.h"
#include "lookup.h"
#include "ordered.h"
#include "placement.h"
#include "pools.h"
#include "region.h"
#include "second/calls.h"
#include "service.h"
#include "slab.h"

const mg_driver *hooks_driver(void) {
    deepbind_catch_up();
    return calls_driver();
}

static mg_address allocate(const mg_driver *d, uint64_t size, const void *caller) {
    if (size == 0 || process_inside) return 0;
    ++process_inside;
    const mg_address address = placement_allocate(d, size, caller);
    if (address != 0) service_begin();
    --process_inside;
    return address;
}

bool hooks_make_room(const mg_driver *d) {
    if (process_inside) return false;
    ++process_inside;
    const bool made = placement_make_room(d);
    --process_inside;
    return made;
}

static bool free_ours(const mg_driver *d, mg_address address, mg_result *result) {
    if (address == 0 || process_inside) return false;
    ++process_inside;
    *result = MG_SUCCESS;
    const bool ours = ordered_free_at_once(d, address) || placement_free(d, address, result);
    --process_inside;
    return ours;
}

static bool find(mg_address address, placement *out) { return !process_inside && placement_find(address, out); }

// Another process's allocation; its memory is mapped here as a whole.
static bool find_imported(mg_address address, placement *out) {
    process *const p = !process_inside ? process_if_any() : NULL;
    return p != NULL && ipc_find(p, address, &out->start, &out->size);
}

EXPORTED mg_result cuMemAlloc_v2(mg_address *address, size_t size) {
    DRIVER_OR_FAIL(d, mem_alloc_v2);
    const mg_address ours = address != NULL ? allocate(d, size, __builtin_return_address(0)) : 0;
    if (ours != 0) {
        *address = ours;
        return MG_SUCCESS;
    }
    const mg_result result = d->mem_alloc_v2(address, size);
    return result == MG_OUT_OF_MEMORY && hooks_make_room(d) ? d->mem_alloc_v2(address, size) : result;
}

// Rows begin at multiples of 512 bytes, as in plain CUDA on every GPU since compute capability 2.0.
#define PITCH_UNIT ((uint64_t)512)

static uint64_t pitched(const mg_driver *d, size_t width, size_t height, unsigned element, uint64_t *pitch) {
    mg_device device;
    int most = 0;
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)) return 0;
    if (d->ctx_get_device(&device) != MG_SUCCESS ||
        d->device_get_attribute(&most, MG_DEVICE_MAX_PITCH, device) != MG_SUCCESS || most <= 0 || width > (size_t)most)
        return 0;
    *pitch = layout_round_up(width, PITCH_UNIT);
    uint64_t size;
    return *pitch > (uint64_t)most || __builtin_mul_overflow(*pitch, (uint64_t)height, &size) ? 0 : size;
}

EXPORTED mg_result cuMemAllocPitch_v2(mg_address *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    DRIVER_OR_FAIL(d, mem_alloc_pitch_v2);
    uint64_t row = 0;
    const uint64_t size = address != NULL && pitch != NULL ? pitched(d, width, height, element, &row) : 0;
    const mg_address ours = allocate(d, size, __builtin_return_address(0));
    if (ours != 0) {
        *address = ours;
        *pitch = row;
        return MG_SUCCESS;
    }
    const mg_result result = d->mem_alloc_pitch_v2(address, pitch, width, height, element);
    return result == MG_OUT_OF_MEMORY && hooks_make_room(d) ? d->mem_alloc_pitch_v2(address, pitch, width, height, element)
                                                      : result;
}

EXPORTED mg_result cuMemFree_v2(mg_address address) {
    DRIVER_OR_FAIL(d, mem_free_v2);
    mg_result result;
    return free_ours(d, address, &result) ? result : d->mem_free_v2(address);
}

EXPORTED mg_result cuMemGetAddressRange_v2(mg_address *start, size_t *size, mg_address address) {
    DRIVER_OR_FAIL(d, mem_get_address_range_v2);
    placement ours;
    if (!find(address, &ours) && !find_imported(address, &ours)) return d->mem_get_address_range_v2(start, size, address);
    if (start != NULL) *start = ours.start;
    if (size != NULL) *size = ours.size;
    return MG_SUCCESS;
}

// What the driver would say of plain memory: it knows the mapping, the program the allocation.
static void correct(const placement *ours, int attribute, void *data) {
    if (data == NULL) return;
    switch (attribute) {
        case MG_POINTER_CONTEXT: *(mg_context *)data = ours->context; break;
        case MG_POINTER_RANGE_START: *(mg_address *)data = ours->start; break;
        case MG_POINTER_RANGE_SIZE: *(size_t *)data = ours->size; break;
        case MG_POINTER_POOL: *(mg_pool *)data = ours->pool; break;
        case MG_POINTER_LEGACY_IPC: *(bool *)data = ours->pool == NULL; break;
        default: break;
    }
}

static bool is_corrected(int attribute) {
    return attribute == MG_POINTER_CONTEXT || attribute == MG_POINTER_RANGE_START ||
           attribute == MG_POINTER_RANGE_SIZE || attribute == MG_POINTER_POOL || attribute == MG_POINTER_LEGACY_IPC;
}

EXPORTED mg_result cuPointerGetAttribute(void *data, int attribute, mg_address address) {
    DRIVER_OR_FAIL(d, pointer_get_attribute);
    placement ours;
    if (data == NULL || !is_corrected(attribute) || !find(address, &ours))
        return d->pointer_get_attribute(data, attribute, address);
    correct(&ours, attribute, data);
    return MG_SUCCESS;
}

EXPORTED mg_result cuPointerGetAttributes(unsigned count, int *attributes, void **data, mg_address address) {
    DRIVER_OR_FAIL(d, pointer_get_attributes);
    const mg_result result = d->pointer_get_attributes(count, attributes, data, address);
    placement ours;
    if (result == MG_SUCCESS && find(address, &ours))
        for (unsigned i = 0; i < count; ++i) correct(&ours, attributes[i], data[i]);
    return result;
}

// Plain memory has no such handle, and programs tell by that how to share it.
EXPORTED mg_result cuMemRetainAllocationHandle(mg_handle *handle, void *address) {
    DRIVER_OR_FAIL(d, mem_retain_allocation_handle);
    if (!process_inside && placement_is_ours((mg_address)(uintptr_t)address)) return MG_INVALID_VALUE;
    return d->mem_retain_allocation_handle(handle, address);
}

// Entered before the driver begins: an allocation of another thread must not come in between.
static process *capture_begins(const mg_driver *d, mg_stream stream, int mode) {
    process *const p = process_get();
    mg_context context = NULL;
    if (p == NULL) return NULL;
    d->ctx_get_current(&context);
    capture_begin(p, stream, context, mode);
    return p;
}

static mg_result capture_ends(process *p, mg_stream stream, bool over, mg_result result) {
    if (over && p != NULL) capture_end(p, stream);
    return result;
}

#define BEGIN_CAPTURE(name, member, parameters, arguments, how)       \
    EXPORTED mg_result name parameters {                              \
        DRIVER_OR_FAIL(d, member);                                    \
        process *const p = capture_begins(d, stream, how);            \
        const mg_result result = d->member arguments;                 \
        return capture_ends(p, stream, result != MG_SUCCESS, result); \
    }
BEGIN_CAPTURE(cuStreamBeginCapture, stream_begin_capture, (mg_stream stream), (stream), MG_CAPTURE_GLOBAL)
BEGIN_CAPTURE(cuStreamBeginCapture_ptsz, stream_begin_capture_ptsz, (mg_stream stream), (stream), MG_CAPTURE_GLOBAL)
BEGIN_CAPTURE(cuStreamBeginCapture_v2, stream_begin_capture_v2, (mg_stream stream, int mode), (stream, mode), mode)
BEGIN_CAPTURE(cuStreamBeginCapture_v2_ptsz, stream_begin_capture_v2_ptsz, (mg_stream stream, int mode), (stream, mode),
              mode)
#define TO_GRAPH \
    (mg_stream stream, void *graph, const void *nodes, const void *edges, size_t count, int mode)
BEGIN_CAPTURE(cuStreamBeginCaptureToGraph, stream_begin_capture_to_graph, TO_GRAPH,
              (stream, graph, nodes, edges, count, mode), mode)
BEGIN_CAPTURE(cuStreamBeginCaptureToGraph_ptsz, stream_begin_capture_to_graph_ptsz, TO_GRAPH,
              (stream, graph, nodes, edges, count, mode), mode)

// A capture that was broken ends here too, with its own errors (900 to 909); 901 is "invalidated". Others mean that the
// stream was not capturing, or that it is the wrong thread's to end.
static bool ended(mg_result result) { return result == MG_SUCCESS || (result >= 901 && result <= 904); }

#define END_CAPTURE(name, member)                                             \
    EXPORTED mg_result name(mg_stream stream, void **graph) {                 \
        DRIVER_OR_FAIL(d, member);                                            \
        const mg_result result = d->member(stream, graph);                    \
        return capture_ends(process_if_any(), stream, ended(result), result); \
    }
END_CAPTURE(cuStreamEndCapture, stream_end_capture)
END_CAPTURE(cuStreamEndCapture_ptsz, stream_end_capture_ptsz)

#define DESTROY_STREAM(name, member)                                                 \
    EXPORTED mg_result name(mg_stream stream) {                                      \
        DRIVER_OR_FAIL(d, member);                                                   \
        const mg_result result = d->member(stream);                                  \
        return capture_ends(process_if_any(), stream, result == MG_SUCCESS, result); \
    }
DESTROY_STREAM(cuStreamDestroy, stream_destroy)
DESTROY_STREAM(cuStreamDestroy_v2, stream_destroy_v2)

// Plain memory goes with its context; regions do not by themselves.
static void context_is_gone(const mg_driver *d, mg_context context, mg_device device) {
    process *const p = process_if_any();
    if (p == NULL || process_inside) return;
    ++process_inside;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < PROCESS_CONTEXTS; ++i) {
        context_entry *const c = &p->contexts[i];
        if (context != NULL ? c->context == context : c->device == device) *c = (context_entry){0};
    }
    pthread_mutex_unlock(&p->lock);
    capture_end_all(p, context);
    ordered_forget(p, context, device);
    ipc_forget(p, d, context, device);
    region_drop(p, d, context, device, slab_forget);
    if (context == NULL) pools_forget(p);
    --process_inside;
}

static void primary_may_be_gone(const mg_driver *d, mg_device device) {
    unsigned flags;
    int active = 1;
    if (d->device_primary_ctx_get_state(device, &flags, &active) == MG_SUCCESS && !active)
        context_is_gone(d, NULL, device);
}

#define DESTROY(name, member)                                                         \
    EXPORTED mg_result name(mg_context context) {                                     \
        DRIVER_OR_FAIL(d, member);                                                    \
        const mg_result result = d->member(context);                                  \
        if (result == MG_SUCCESS && context != NULL) context_is_gone(d, context, -1); \
        return result;                                                                \
    }
DESTROY(cuCtxDestroy, ctx_destroy)
DESTROY(cuCtxDestroy_v2, ctx_destroy_v2)

#define PRIMARY(name, member)                                     \
    EXPORTED mg_result name(mg_device device) {                   \
        DRIVER_OR_FAIL(d, member);                                \
        const mg_result result = d->member(device);               \
        if (result == MG_SUCCESS) primary_may_be_gone(d, device); \
        return result;                                            \
    }
PRIMARY(cuDevicePrimaryCtxReset, device_primary_ctx_reset)
PRIMARY(cuDevicePrimaryCtxReset_v2, device_primary_ctx_reset_v2)
PRIMARY(cuDevicePrimaryCtxRelease, device_primary_ctx_release)
PRIMARY(cuDevicePrimaryCtxRelease_v2, device_primary_ctx_release_v2)

EXPORTED mg_result cuGreenCtxCreate(void **context, void *description, mg_device device, unsigned flags) {
    DRIVER_OR_FAIL(d, green_ctx_create);
    process *const p = process_get();
    if (p != NULL) atomic_store_explicit(&p->green, true, memory_order_release);
    return d->green_ctx_create(context, description, device, flags);
}
