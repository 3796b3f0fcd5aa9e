#define _GNU_SOURCE
#include "peer.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#define CAPABILITY_SYS_PTRACE 19

static bool credentials_of(int fd, struct ucred *out) {
    socklen_t size = sizeof *out;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &size) == 0;
}

pid_t peer_pid(int fd) {
    struct ucred peer;
    return credentials_of(fd, &peer) ? peer.pid : -1;
}

// Whether the process of the connection has ended, so that its number may be another one's. Not known before Linux 6.5.
static bool has_ended(int fd) {
    int process = -1;
    socklen_t size = sizeof process;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &process, &size) != 0 || process < 0) return false;
    struct pollfd look = {.fd = process, .events = POLLIN};
    const bool ended = poll(&look, 1, 0) != 0;
    close(process);
    return ended;
}

// Root of a container is no root: it lacks the right to read others' memory, or is in a pid namespace below ours. What
// is outside of ours cannot be looked at; that is the machine, if we are in a container.
static bool is_root(int fd, pid_t pid) {
    char path[32], text[4096];
    if (pid == 0) return true;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t size = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (file >= 0) close(file);
    if (size < 0) return false;
    text[size] = '\0';
    const char *const rights = strstr(text, "\nCapEff:\t"), *const numbers = strstr(text, "\nNSpid:\t");
    if (rights == NULL || numbers == NULL) return false;
    const uint64_t effective = strtoull(rights + strlen("\nCapEff:\t"), NULL, 16);
    const size_t here = strcspn(numbers + strlen("\nNSpid:\t"), "\t\n");
    return effective >> CAPABILITY_SYS_PTRACE & 1 && numbers[strlen("\nNSpid:\t") + here] == '\n' && !has_ended(fd);
}

peer_kind peer_of(int fd) {
    struct ucred peer;
    if (!credentials_of(fd, &peer)) return PEER_STRANGER;
    if (peer.uid == geteuid()) return PEER_SAME_USER;
    return peer.uid == 0 && is_root(fd, peer.pid) ? PEER_ROOT : PEER_STRANGER;
}

bool peer_may_send_descriptors(int fd, bool may) {
    const int value = may;
    return setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof value) == 0;
}

static bool may_have_sent_descriptors(int fd) {
    int value = 1;
    socklen_t size = sizeof value;
    return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, &size) != 0 || value != 0;
}

// A thread that ends with a copy of the table of descriptors: what it holds last is closed by its end. The kernel lets no
// socket linger for that; and if something else takes its time, no thread that does anything waits for it.
static struct {
    _Alignas(16) char stack[8192];
    pid_t thread;           // 0 once the stack is free
    _Atomic bool may_end;
} ending;

// It has no thread-local variables of its own: nothing here may set errno, or be watched by a sanitizer.
static __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined"))) int end(void *unused) {
    (void)unused;
    while (!atomic_load_explicit(&ending.may_end, memory_order_acquire)) sched_yield();
    return 0;
}

void peer_turn_away(int fd) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    // No CLONE_FILES: a table of its own. A process would be one more for the program to wait for.
    const int how = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID |
                    CLONE_CHILD_CLEARTID;
    if (!may_have_sent_descriptors(fd)) {
        close(fd);
        return;
    }
    pthread_mutex_lock(&one_at_a_time);
    while (__atomic_load_n(&ending.thread, __ATOMIC_ACQUIRE) != 0) sched_yield();
    atomic_store_explicit(&ending.may_end, false, memory_order_relaxed);
    clone(end, ending.stack + sizeof ending.stack, how, NULL, &ending.thread, NULL, &ending.thread);
    close(fd);
    atomic_store_explicit(&ending.may_end, true, memory_order_release);
    pthread_mutex_unlock(&one_at_a_time);
}
