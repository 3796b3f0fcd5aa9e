// Legacy CUDA IPC (cuIpcGetMemHandle and its counterparts) for memory in regions.
//
// The driver has no such handle for memory made by cuMemCreate. So the exporting process keeps a POSIX descriptor of the
// region's memory and hands it out for the key in the handle: the service's thread does that (service.h), on the socket
// that the handle names. The importer maps the memory in a reservation of its own.
// Only processes of the same user are served. Nothing here waits without a limit.
#pragma once

#include "process.h"

// The 64 bytes that travel between processes, in place of the driver's own.
typedef struct {
    char magic[8];
    uint8_t server[16];  // name of the exporting process's socket
    uint8_t key[16];     // of the memory
    uint64_t offset;     // of the allocation in the memory
    uint64_t size;       // of the allocation
    uint32_t pid;        // of the exporting process
    uint32_t reserved;
} ipc_handle;

_Static_assert(sizeof(ipc_handle) == sizeof(mg_ipc_handle), "CU_IPC_HANDLE_SIZE");

// Makes a handle for the allocation of ours that holds `address`, while the service runs; the answer is in `result`.
void ipc_export(process *p, const mg_driver *d, mg_address address, ipc_handle *out, mg_result *result);

// Answers a process that asks for the memory of a key.
void ipc_answer(process *p, int client, const uint8_t *key);

// Whether some preload has made the handle, and not the driver.
bool ipc_is_ours(const mg_ipc_handle *handle);

// Maps the memory of a handle into the current context, or counts one use more where it is mapped already.
mg_result ipc_import(process *p, const mg_driver *d, const mg_ipc_handle *handle, mg_address *out);

// One use less of what starts at `address`. False if that was not imported; `result` is the answer if it was.
bool ipc_close(process *p, const mg_driver *d, mg_address address, mg_result *result);

// The imported allocation that holds `address`: where it starts, and its size.
bool ipc_find(process *p, mg_address address, mg_address *start, uint64_t *size);

// Unmaps what was imported into a context that is gone (NULL: the device's primary one).
void ipc_forget(process *p, const mg_driver *d, mg_context context, mg_device device);
