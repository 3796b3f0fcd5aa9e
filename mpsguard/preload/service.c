#define _GNU_SOURCE
#include "service.h"

#include <errno.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc.h"
#include "ipc_socket.h"
#include "peer.h"
#include "snapshot.h"

#define BACKLOG 64
// Our own frames are a few hundred bytes deep; the driver's, of an export, are given the rest.
#define STACK_BYTES ((size_t)512 << 10)
// Before accept(2) is tried again when there is no descriptor to be had.
#define PAUSE_MICROSECONDS 50000

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static void answer(process *p, int client, peer_kind peer) {
    union {
        uint8_t key[16];
        snapshot_request snapshot;
    } asked;
    ipc_socket_limit(client);
    const ssize_t size = recv(client, &asked, sizeof asked, 0);
    if (size == (ssize_t)sizeof asked.snapshot) {
        if (p->set.snapshots) snapshot_answer(p, client, &asked.snapshot);
    } else if (size == (ssize_t)sizeof asked.key && peer == PEER_SAME_USER) {
        ipc_answer(p, client, asked.key);
    }
}

// Another user's connection is neither read nor closed by this thread, which it could hold up.
static void meet(process *p, int client) {
    const peer_kind peer = peer_of(client);
    if (peer == PEER_STRANGER) {
        peer_turn_away(client);
        return;
    }
    answer(p, client, peer);
    close(client);
}

static void *serve(void *argument) {
    process *const p = argument;
    for (;;) {
        const int client = accept4(p->service_listener, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0) {
            meet(p, client);
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

bool service_start(process *p) {
    pthread_mutex_lock(&starting);
    if (!p->service_runs) {
        const bool named = getrandom(p->service_name, sizeof p->service_name, 0) == (ssize_t)sizeof p->service_name;
        p->service_listener = named ? ipc_socket_listen(p->service_name, BACKLOG) : -1;
        p->service_runs = p->service_listener >= 0 && start_thread(p);
        if (!p->service_runs && p->service_listener >= 0) close(p->service_listener);
    }
    const bool runs = p->service_runs;
    pthread_mutex_unlock(&starting);
    return runs;
}

void service_begin(void) {
    process *const p = process_if_any();
    if (p == NULL || atomic_load_explicit(&p->service_begun, memory_order_relaxed) || !p->set.snapshots) return;
    if (atomic_exchange_explicit(&p->service_begun, true, memory_order_relaxed) || !service_start(p)) return;
    pthread_mutex_lock(&p->lock);
    zone_table_name(&p->table, p->service_name);
    pthread_mutex_unlock(&p->lock);
}
