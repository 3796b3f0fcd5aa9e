#define _GNU_SOURCE
#include <string.h>

#include "counters.h"
#include "hooks.h"
#include "ipc.h"
#include "placement.h"
#include "process.h"
#include "second/reasons.h"
#include "service.h"

// False if the memory is none of ours. The service runs first: the handle names its socket.
static bool export_ours(process *p, const mg_driver *d, mg_address address, ipc_handle *out, mg_result *result) {
    if (!placement_is_ours(address)) return false;
    *result = MG_INVALID_VALUE;
    if (service_start(p)) ipc_export(p, d, address, out, result);
    return true;
}

EXPORTED mg_result cuIpcGetMemHandle(mg_ipc_handle *handle, mg_address address) {
    DRIVER_OR_FAIL(d, ipc_get_mem_handle);
    mg_result result;
    ipc_handle ours;
    process *const p = handle != NULL && !process_inside ? process_if_any() : NULL;
    if (p == NULL) return d->ipc_get_mem_handle(handle, address);
    ++process_inside;
    const bool found = export_ours(p, d, address, &ours, &result);
    --process_inside;
    if (!found) return d->ipc_get_mem_handle(handle, address);
    if (result == MG_SUCCESS) {
        memcpy(handle, &ours, sizeof ours);
        // Another process may write to it at any time, and its work is not seen here.
        reasons_hold_for(REASON_shared_with_others, "cuIpcGetMemHandle");
    }
    counter_add(result == MG_SUCCESS ? COUNT_ipc_exported : COUNT_ipc_refused);
    return result;
}

static bool open_ours(const mg_driver *d, mg_address *address, const mg_ipc_handle *handle, mg_result *result) {
    process *const p = address != NULL && ipc_is_ours(handle) && !process_inside ? process_get() : NULL;
    if (p == NULL) return false;
    ++process_inside;
    *result = ipc_import(p, d, handle, address);
    --process_inside;
    return true;
}

#define OPEN(name, member)                                                                           \
    EXPORTED mg_result name(mg_address *address, mg_ipc_handle handle, unsigned flags) {             \
        DRIVER_OR_FAIL(d, member);                                                                   \
        mg_result result;                                                                            \
        if (open_ours(d, address, &handle, &result)) return result;                                  \
        result = d->member(address, handle, flags);                                                  \
        if (result == MG_SUCCESS) reasons_hold_for(REASON_shared_with_others, #name);                \
        return result;                                                                               \
    }
OPEN(cuIpcOpenMemHandle, ipc_open_mem_handle)
OPEN(cuIpcOpenMemHandle_v2, ipc_open_mem_handle_v2)

// An event of another process cannot be made again.
EXPORTED mg_result cuIpcOpenEventHandle(mg_event *event, mg_ipc_handle handle) {
    DRIVER_OR_FAIL(d, ipc_open_event_handle);
    const mg_result result = d->ipc_open_event_handle(event, handle);
    if (result == MG_SUCCESS) reasons_hold_for(REASON_shared_with_others, "cuIpcOpenEventHandle");
    return result;
}

EXPORTED mg_result cuIpcCloseMemHandle(mg_address address) {
    DRIVER_OR_FAIL(d, ipc_close_mem_handle);
    mg_result result;
    process *const p = !process_inside ? process_if_any() : NULL;
    if (p == NULL) return d->ipc_close_mem_handle(address);
    ++process_inside;
    const bool ours = ipc_close(p, d, address, &result);
    --process_inside;
    return ours ? result : d->ipc_close_mem_handle(address);
}
