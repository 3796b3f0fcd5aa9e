#define _GNU_SOURCE
#include "snapshot.h"

#include <string.h>
#include <unistd.h>

#include "counters.h"
#include "ipc_socket.h"
#include "lookup.h"
#include "region.h"
#include "second/calls.h"
#include "registry.h"
#include "streams.h"

// The caller holds the lock.
static const region *find(const process *p, const snapshot_request *asked) {
    const region *const r = registry_find(p, asked->start);
    return r != NULL && r->start == asked->start && r->number == asked->number ? r : NULL;
}

static void name_gpu(const mg_driver *d, mg_device device, uint8_t gpu[16]) {
    if (d->device_get_uuid_v2 == NULL || d->device_get_uuid_v2(gpu, device) != MG_SUCCESS) memset(gpu, 0, 16);
}

// This thread belongs to no stream, but an export is no call that every capture of another thread lets pass.
static mg_result export_relaxed(const mg_driver *d, mg_address memory, int *fd) {
    if (d->thread_exchange_stream_capture_mode == NULL) return region_export(d, memory, fd);
    const int mode = streams_relax(d);
    const mg_result result = region_export(d, memory, fd);
    streams_unrelax(d, mode);
    return result;
}

static void describe(const region *r, snapshot_reply *out) {
    out->flags = (r->slab != NULL ? SNAPSHOT_SLAB : 0) | (r->aside ? SNAPSHOT_SET_ASIDE : 0) |
                 (r->pool != NULL ? SNAPSHOT_ORDERED : 0);
    out->memory = r->at.memory;
    out->offset = r->at.user - r->at.front;
    out->user = r->user;
    out->size = r->size;
}

void snapshot_answer(process *p, int client, const snapshot_request *asked) {
    const mg_driver *const d = calls_driver();
    snapshot_reply reply = {.result = SNAPSHOT_GONE};
    int fd = -1;
    if (d == NULL || memcmp(asked->magic, SNAPSHOT_MAGIC, sizeof asked->magic) != 0) return;
    pthread_mutex_lock(&p->lock);
    const region *r = find(p, asked);
    const mg_address memory = r != NULL ? r->start + r->at.front : 0;
    const mg_device device = r != NULL ? r->device : 0;
    pthread_mutex_unlock(&p->lock);
    if (memory != 0) {
        ++process_inside;
        reply.result = export_relaxed(d, memory, &fd);
        name_gpu(d, device, reply.gpu);
        --process_inside;
        // Numbers are not given twice: if it has the same one, it was there all the while, and the descriptor is its.
        pthread_mutex_lock(&p->lock);
        r = find(p, asked);
        if (r != NULL) describe(r, &reply);
        pthread_mutex_unlock(&p->lock);
        if (r == NULL) reply.result = SNAPSHOT_GONE;
    }
    ipc_socket_send(client, reply.result == MG_SUCCESS ? fd : -1, &reply, sizeof reply);
    if (fd >= 0) close(fd);
    if (reply.result == MG_SUCCESS) counter_add(COUNT_snapshot_exported);
}
