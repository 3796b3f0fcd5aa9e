#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "counters.h"
#include "ipc.h"
#include "ipc_socket.h"
#include "placement.h"
#include "region.h"
#include "registry.h"

// A copy of the descriptor behind a key, and how much memory it is; -1 if there is none.
static int copy_of(process *p, const uint8_t *key, uint64_t *memory) {
    int copy = -1;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->live_count && copy < 0; ++i) {
        const region *const r = p->live[i];
        if (r->shared < 0 || memcmp(r->key, key, sizeof r->key) != 0) continue;
        *memory = r->at.memory;
        copy = fcntl(r->shared, F_DUPFD_CLOEXEC, 0);
    }
    pthread_mutex_unlock(&p->lock);
    return copy;
}

void ipc_answer(process *p, int client, const uint8_t *key) {
    uint64_t memory = 0;
    const int fd = copy_of(p, key, &memory);
    if (fd < 0) return;
    ipc_socket_send(client, fd, &memory, sizeof memory);
    close(fd);
}

// Fills in a handle for a region that is shared already; false if it is not. The caller holds the lock.
static bool describe(const process *p, const region *r, const placement *found, ipc_handle *out) {
    if (r->shared < 0) return false;
    memset(out, 0, sizeof *out);
    memcpy(out->magic, IPC_MAGIC, sizeof out->magic);
    memcpy(out->server, p->service_name, sizeof out->server);
    memcpy(out->key, r->key, sizeof out->key);
    out->offset = found->start - (r->start + r->at.front);
    out->size = found->size;
    out->pid = (uint32_t)getpid();
    return true;
}

void ipc_export(process *p, const mg_driver *d, mg_address address, ipc_handle *out, mg_result *result) {
    placement found;
    uint8_t key[sizeof out->key];
    *result = MG_INVALID_VALUE;
    // Memory of a pool has no such handle in plain CUDA either.
    if (!placement_find(address, &found) || found.pool != NULL || d->mem_export_to_shareable_handle == NULL) return;
    pthread_mutex_lock(&p->lock);
    const region *const known = registry_find(p, address);
    const mg_address memory = known != NULL ? known->start + known->at.front : 0;
    const bool done = known != NULL && describe(p, known, &found, out);
    pthread_mutex_unlock(&p->lock);
    if (done) {
        *result = MG_SUCCESS;
        return;
    }
    if (memory == 0 || getrandom(key, sizeof key, 0) != (ssize_t)sizeof key) return;
    int fd = -1;
    region_export(d, memory, &fd);
    pthread_mutex_lock(&p->lock);
    region *const r = fd >= 0 ? registry_find(p, address) : NULL;
    if (r != NULL && r->shared < 0) {
        r->shared = fd;
        memcpy(r->key, key, sizeof r->key);
        fd = -1;
    }
    if (r != NULL && describe(p, r, &found, out)) *result = MG_SUCCESS;
    pthread_mutex_unlock(&p->lock);
    if (fd >= 0) close(fd);
}
