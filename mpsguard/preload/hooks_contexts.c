// Hooks of what makes contexts: with a second device in use, memory is plain.
#define _GNU_SOURCE
#include "devices.h"
#include "hooks.h"

static mg_result made(const mg_driver *d, mg_device device, mg_result result) {
    int count = 0;
    // With one device there is nothing to note, nor any state to make for that.
    if (result != MG_SUCCESS || process_inside || d->device_get_count(&count) != MG_SUCCESS || count == 1) return result;
    process *const p = process_get();
    if (p == NULL) return result;
    ++process_inside;
    devices_note(p, d, device);
    --process_inside;
    return result;
}

#define MAKE(name, member, parameters, arguments)           \
    EXPORTED mg_result name parameters {                    \
        DRIVER_OR_FAIL(d, member);                          \
        return made(d, device, d->member arguments);        \
    }
MAKE(cuDevicePrimaryCtxRetain, device_primary_ctx_retain, (mg_context * context, mg_device device), (context, device))
MAKE(cuCtxCreate, ctx_create, (mg_context * context, unsigned flags, mg_device device), (context, flags, device))
MAKE(cuCtxCreate_v2, ctx_create_v2, (mg_context * context, unsigned flags, mg_device device), (context, flags, device))
MAKE(cuCtxCreate_v3, ctx_create_v3, (mg_context * context, void *shares, int count, unsigned flags, mg_device device),
     (context, shares, count, flags, device))
MAKE(cuCtxCreate_v4, ctx_create_v4, (mg_context * context, void *settings, unsigned flags, mg_device device),
     (context, settings, flags, device))
