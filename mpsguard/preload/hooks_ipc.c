#define _GNU_SOURCE
#include <string.h>

#include "counters.h"
#include "hooks.h"
#include "ipc.h"
#include "process.h"

EXPORTED mg_result cuIpcGetMemHandle(mg_ipc_handle *handle, mg_address address) {
    DRIVER_OR_FAIL(d, cuIpcGetMemHandle);
    mg_result result;
    ipc_handle ours;
    process *const p = handle != NULL && !process_inside ? process_if_any() : NULL;
    if (p == NULL) return d->cuIpcGetMemHandle(handle, address);
    ++process_inside;
    const bool found = ipc_export(p, d, address, &ours, &result);
    --process_inside;
    if (!found) return d->cuIpcGetMemHandle(handle, address);
    if (result == MG_SUCCESS) memcpy(handle, &ours, sizeof ours);
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

#define OPEN(name)                                                                              \
    EXPORTED mg_result name(mg_address *address, mg_ipc_handle handle, unsigned flags) {        \
        DRIVER_OR_FAIL(d, name);                                                                \
        mg_result result;                                                                       \
        return open_ours(d, address, &handle, &result) ? result : d->name(address, handle, flags); \
    }
OPEN(cuIpcOpenMemHandle)
OPEN(cuIpcOpenMemHandle_v2)

EXPORTED mg_result cuIpcCloseMemHandle(mg_address address) {
    DRIVER_OR_FAIL(d, cuIpcCloseMemHandle);
    mg_result result;
    process *const p = !process_inside ? process_if_any() : NULL;
    if (p == NULL) return d->cuIpcCloseMemHandle(address);
    ++process_inside;
    const bool ours = ipc_close(p, d, address, &result);
    --process_inside;
    return ours ? result : d->cuIpcCloseMemHandle(address);
}
