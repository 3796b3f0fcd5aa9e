#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "counters.h"
#include "ipc.h"
#include "ipc_socket.h"
#include "placement.h"
#include "region.h"
#include "registry.h"

#define BACKLOG 64
// Our own frames are a few hundred bytes deep.
#define STACK_BYTES ((size_t)256 << 10)
// Before accept(2) is tried again when there is no descriptor to be had.
#define PAUSE_MICROSECONDS 50000

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

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

static void answer(process *p, int client) {
    uint8_t key[sizeof(((region *)0)->key)];
    uint64_t memory = 0;
    if (!ipc_socket_prepare(client) || recv(client, key, sizeof key, 0) != (ssize_t)sizeof key) return;
    const int fd = copy_of(p, key, &memory);
    if (fd < 0) return;
    ipc_socket_send(client, fd, memory);
    close(fd);
}

static void *serve(void *argument) {
    process *const p = argument;
    for (;;) {
        const int client = accept4(p->ipc_listener, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0) {
            answer(p, client);
            close(client);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            usleep(PAUSE_MICROSECONDS);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return NULL;
        }
    }
}

static bool start_thread(process *p) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0) return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    // The program's signals are for its own threads.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, &attributes, serve, p) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

static bool is_served(process *p) {
    pthread_mutex_lock(&starting);
    if (!p->ipc_served) {
        if (getrandom(p->ipc_server, sizeof p->ipc_server, 0) == (ssize_t)sizeof p->ipc_server)
            p->ipc_listener = ipc_socket_listen(p->ipc_server, BACKLOG);
        p->ipc_served = p->ipc_listener > 0 && start_thread(p);
        if (!p->ipc_served && p->ipc_listener > 0) close(p->ipc_listener);
    }
    const bool served = p->ipc_served;
    pthread_mutex_unlock(&starting);
    return served;
}

// Fills in a handle for a region that is shared already; false if it is not. The caller holds the lock.
static bool describe(const process *p, const region *r, const placement *found, ipc_handle *out) {
    if (r->shared < 0) return false;
    memset(out, 0, sizeof *out);
    memcpy(out->magic, IPC_MAGIC, sizeof out->magic);
    memcpy(out->server, p->ipc_server, sizeof out->server);
    memcpy(out->key, r->key, sizeof out->key);
    out->offset = found->start - (r->start + r->at.front);
    out->size = found->size;
    out->pid = (uint32_t)getpid();
    return true;
}

// A descriptor of the memory that is mapped at `memory`, or -1.
static int descriptor_of(const mg_driver *d, mg_address memory) {
    mg_handle handle;
    int fd = -1;
    if (d->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)memory) != MG_SUCCESS) return -1;
    if (d->cuMemExportToShareableHandle(&fd, handle, MG_HANDLE_POSIX, 0) != MG_SUCCESS) fd = -1;
    d->cuMemRelease(handle);
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

bool ipc_export(process *p, const mg_driver *d, mg_address address, ipc_handle *out, mg_result *result) {
    placement found;
    uint8_t key[sizeof out->key];
    if (!placement_is_ours(address)) return false;
    *result = MG_INVALID_VALUE;
    // Memory of a pool has no such handle in plain CUDA either.
    if (!placement_find(address, &found) || found.pool != NULL || d->cuMemExportToShareableHandle == NULL) return true;
    pthread_mutex_lock(&p->lock);
    const region *const known = registry_find(p, address);
    const mg_address memory = known != NULL ? known->start + known->at.front : 0;
    const bool done = known != NULL && describe(p, known, &found, out);
    pthread_mutex_unlock(&p->lock);
    if (done) return *result = MG_SUCCESS, true;
    if (memory == 0 || !is_served(p) || getrandom(key, sizeof key, 0) != (ssize_t)sizeof key) return true;
    int fd = descriptor_of(d, memory);
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
    return true;
}
