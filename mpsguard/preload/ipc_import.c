#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "counters.h"
#include "ipc.h"
#include "ipc_socket.h"
#include "placement.h"

struct imported {
    imported *next;
    uint8_t key[16];
    context_entry of;
    mg_address start;     // of the reservation and the mapping
    uint64_t memory;
    uint64_t uses;        // opened and not closed
    mg_address user[2];   // the last allocation that was asked for: where it starts, and behind it
};

bool ipc_is_ours(const mg_ipc_handle *handle) { return memcmp(handle->bytes, IPC_MAGIC, sizeof IPC_MAGIC - 1) == 0; }

// What is mapped of a key in a context, with one use more. The caller holds the lock.
static mg_address use(process *p, const ipc_handle *handle, mg_context context) {
    for (imported *each = p->imports; each != NULL; each = each->next) {
        if (each->of.context != context || memcmp(each->key, handle->key, sizeof each->key) != 0) continue;
        if (handle->size > each->memory || handle->offset > each->memory - handle->size) return 0;
        ++each->uses;
        each->user[0] = each->start + handle->offset;
        each->user[1] = each->user[0] + handle->size;
        return each->user[0];
    }
    return 0;
}

static void unmap(const mg_driver *d, mg_address start, uint64_t memory) {
    d->mem_unmap(start, memory);
    d->mem_address_free(start, memory);
}

// Memory behind a descriptor at an address of its own; 0 if the driver would not.
static mg_address map(const mg_driver *d, int fd, mg_device device, uint64_t memory) {
    const mg_access access = {.location = {.type = MG_LOCATION_DEVICE, .id = device}, .flags = MG_ACCESS_READ_WRITE};
    mg_handle handle;
    mg_address start = 0;
    if (d->mem_import_from_shareable_handle(&handle, (void *)(intptr_t)fd, MG_HANDLE_POSIX) != MG_SUCCESS) return 0;
    if (d->mem_address_reserve(&start, memory, 0, 0, 0) != MG_SUCCESS) start = 0;
    if (start != 0 && d->mem_map(start, memory, 0, handle, 0) != MG_SUCCESS) {
        d->mem_address_free(start, memory);
        start = 0;
    }
    // From here on the mapping holds the memory.
    d->mem_release(handle);
    if (start != 0 && d->mem_set_access(start, memory, &access, 1) != MG_SUCCESS) {
        unmap(d, start, memory);
        start = 0;
    }
    return start;
}

mg_result ipc_import(process *p, const mg_driver *d, const mg_ipc_handle *given, mg_address *out) {
    ipc_handle handle;
    context_entry c;
    uint64_t memory = 0;
    memcpy(&handle, given, sizeof handle);
    if (!placement_context(p, d, &c) || d->mem_import_from_shareable_handle == NULL) return MG_INVALID_CONTEXT;
    // As the driver answers to its own process.
    if (handle.pid == (uint32_t)getpid() && memcmp(handle.server, p->service_name, sizeof handle.server) == 0)
        return MG_INVALID_CONTEXT;
    pthread_mutex_lock(&p->lock);
    *out = use(p, &handle, c.context);
    pthread_mutex_unlock(&p->lock);
    if (*out != 0) return MG_SUCCESS;
    const int fd = ipc_socket_ask(handle.server, (pid_t)handle.pid, handle.key, &memory);
    if (fd < 0) return MG_INVALID_HANDLE;
    imported *const made = calloc(1, sizeof *made);
    const bool fits = memory > 0 && handle.size <= memory && handle.offset <= memory - handle.size;
    const mg_address start = made != NULL && fits ? map(d, fd, c.device, memory) : 0;
    close(fd);
    if (start == 0) {
        free(made);
        return MG_MAP_FAILED;
    }
    *made = (imported){.of = c, .start = start, .memory = memory};
    memcpy(made->key, handle.key, sizeof made->key);
    pthread_mutex_lock(&p->lock);
    // Another thread may have mapped it meanwhile; its mapping serves both.
    *out = use(p, &handle, c.context);
    const bool needed = *out == 0;
    if (needed) {
        made->next = p->imports;
        p->imports = made;
        *out = use(p, &handle, c.context);
    }
    pthread_mutex_unlock(&p->lock);
    if (!needed) {
        unmap(d, start, memory);
        free(made);
    }
    counter_add(COUNT_ipc_imported);
    return MG_SUCCESS;
}

// The link to the import that holds `address`, or to the end of the list. The caller holds the lock.
static imported **find(process *p, mg_address address) {
    imported **link = &p->imports;
    while (*link != NULL && (address < (*link)->start || address - (*link)->start >= (*link)->memory))
        link = &(*link)->next;
    return link;
}

bool ipc_close(process *p, const mg_driver *d, mg_address address, mg_result *result) {
    pthread_mutex_lock(&p->lock);
    imported **const link = find(p, address), *const found = *link;
    const bool last = found != NULL && --found->uses == 0;
    if (last) *link = found->next;
    pthread_mutex_unlock(&p->lock);
    if (found == NULL) return false;
    *result = MG_SUCCESS;
    if (!last) return true;
    // As the driver does: work that uses it may still run.
    *result = d->ctx_synchronize();
    unmap(d, found->start, found->memory);
    free(found);
    return true;
}

bool ipc_find(process *p, mg_address address, mg_address *start, uint64_t *size) {
    pthread_mutex_lock(&p->lock);
    const imported *const found = *find(p, address);
    const bool inside = found != NULL && address >= found->user[0] && address < found->user[1];
    if (inside) {
        *start = found->user[0];
        *size = found->user[1] - found->user[0];
    }
    pthread_mutex_unlock(&p->lock);
    return inside;
}

void ipc_forget(process *p, const mg_driver *d, mg_context context, mg_device device) {
    imported *gone = NULL;
    pthread_mutex_lock(&p->lock);
    for (imported **link = &p->imports; *link != NULL;) {
        imported *const each = *link;
        const bool is_of = context != NULL ? each->of.context == context : each->of.primary && each->of.device == device;
        if (!is_of) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        each->next = gone;
        gone = each;
    }
    pthread_mutex_unlock(&p->lock);
    while (gone != NULL) {
        imported *const each = gone;
        gone = each->next;
        unmap(d, each->start, each->memory);
        free(each);
    }
}
