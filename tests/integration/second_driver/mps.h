// The stand-in's connections to an MPS control daemon and its server, where its pipe directory has one: as a client of 580 makes
// them, then with the simulation's own words (fault_injection/sim/wire.py, kernel.py). Without a socket `control` there are none.
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MPS_REFUSED = 806 };
static int mps_process = -1, mps_context = -1;
static char mps_path[600];

static int mps_connect(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, mps_path, sizeof address.sun_path - 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static bool mps_say(int fd, const void *data, size_t size) { return send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size; }
static bool mps_say_int(int fd, int32_t value) { return mps_say(fd, &value, sizeof value); }
static int mps_hear_int(int fd) {
    int32_t value;
    return recv(fd, &value, sizeof value, 0) == sizeof value ? value : MPS_REFUSED;
}

// The descriptor in a message, or -1.
static int mps_hear_descriptor(int fd) {
    union { struct cmsghdr head; char bytes[256]; } control;
    char word[16];
    struct iovec part = {word, sizeof word};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) <= 0) return -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c != NULL; c = CMSG_NXTHDR(&message, c)) {
        int got;
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        memcpy(&got, CMSG_DATA(c), sizeof got);
        return got;
    }
    return -1;
}

// A socket to the server for a context (0: that of cuInit); the result is the server's word, or that it could not be reached.
static int mps_attach(int32_t context, int *out) {
    static const char credentials[] = "OUTBCRED";
    char word[64];
    const int daemon = mps_connect();
    int result = MPS_REFUSED;
    if (daemon < 0) return result;
    if (recv(daemon, word, sizeof word, 0) > 0 && mps_say(daemon, credentials, sizeof credentials) && mps_say_int(daemon, 2) &&
        (*out = mps_hear_descriptor(daemon)) >= 0) {
        recv(*out, word, sizeof word, 0);
        mps_say(*out, credentials, sizeof credentials);
        mps_say_int(*out, context);
        mps_say_int(*out, context == 0 ? 255 : 0);
        result = mps_hear_int(*out);
        mps_say_int(daemon, result);
    }
    close(daemon);
    return result;
}

static int mps_init(const char *directory) {
    char word[64];
    snprintf(mps_path, sizeof mps_path, "%s/control", directory);
    if (access(mps_path, F_OK) != 0) return 0;
    const int probe = mps_connect();
    if (probe < 0 || recv(probe, word, sizeof word, 0) <= 0) return MPS_REFUSED;
    close(probe);
    return mps_attach(0, &mps_process);
}

static int mps_make_context(void) { return mps_process < 0 || mps_context >= 0 ? 0 : mps_attach(1, &mps_context); }

static void mps_leave(void) {
    if (mps_context >= 0) close(mps_context);
    if (mps_process >= 0) close(mps_process);
    mps_context = mps_process = -1;
}

typedef struct __attribute__((packed)) { double seconds; char fault[16]; } mps_kernel;

// As the kernel's driver says of a trap: outside of MPS with the process' own pid. STAND_IN_KERNEL_LOG: where; a fault on the lane is
// its first line, and that of the repetition the second one.
static void mps_tell_kernel_log(int gpu, bool alone) {
    const char *const path = getenv("STAND_IN_KERNEL_LOG");
    const int fd = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    char process[32] = "";
    struct timespec now;
    if (fd < 0) return;
    if (alone) snprintf(process, sizeof process, "pid=%d, name=x, ", (int)getpid());
    clock_gettime(CLOCK_MONOTONIC, &now);
    dprintf(fd, "3,%d,%lld,-;NVRM: Xid (PCI:0000:%02x:00): 43, %sCh 00000008\n", alone ? 2 : 1,
            (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000, 0x41 + gpu, process);
    close(fd);
}

// The server has the fault, for all its clients. False without a server.
static bool mps_trap(int gpu) {
    const mps_kernel kernel = {.fault = "trap"};
    if (mps_context < 0) return false;
    mps_tell_kernel_log(gpu, false);
    return mps_say(mps_context, &kernel, sizeof kernel) && mps_hear_int(mps_context) != 0;
}

// Whether the context is lost: a kernel of no length tells.
static bool mps_is_lost(void) {
    const mps_kernel kernel = {0};
    return mps_context >= 0 && (!mps_say(mps_context, &kernel, sizeof kernel) || mps_hear_int(mps_context) != 0);
}
