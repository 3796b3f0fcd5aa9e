#define _GNU_SOURCE
#include "ipc_socket.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "peer.h"

// For one answer: the exporter looks its memory up and sends it, whatever its program does.
#define DEADLINE_SECONDS 5

static socklen_t address_of(const uint8_t name[16], struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    // Abstract names begin with NUL and go with the last descriptor of the socket.
    char *at = out->sun_path + 1;
    at += sprintf(at, "mpsguard-ipc-");
    for (int i = 0; i < 16; ++i) at += sprintf(at, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)(at - out->sun_path));
}

void ipc_socket_limit(int fd) {
    const struct timeval most = {.tv_sec = DEADLINE_SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

int ipc_socket_listen(const uint8_t name[16], int backlog) {
    struct sockaddr_un address;
    const socklen_t size = address_of(name, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    // No request has a descriptor with it.
    peer_may_send_descriptors(fd, false);
    if (bind(fd, (struct sockaddr *)&address, size) == 0 && listen(fd, backlog) == 0) return fd;
    close(fd);
    return -1;
}

void ipc_socket_send(int fd, int memory_fd, const void *data, size_t size) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (memory_fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *const rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &memory_fd, sizeof memory_fd);
    }
    // A peer that is gone, or does not read, gets nothing.
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    (void)sent;
}

static int receive(int fd, uint64_t *memory) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {.iov_base = memory, .iov_len = sizeof *memory};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes,
    };
    int got = -1;
    const ssize_t size = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *const rights = size >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (rights != NULL && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
        rights->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&got, CMSG_DATA(rights), sizeof got);
    if (got >= 0 && size == (ssize_t)sizeof *memory) return got;
    if (got >= 0) close(got);
    return -1;
}

int ipc_socket_ask(const uint8_t name[16], pid_t pid, const uint8_t key[16], uint64_t *memory) {
    struct sockaddr_un address;
    const socklen_t size = address_of(name, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int got = -1;
    if (fd < 0) return -1;
    ipc_socket_limit(fd);
    // The name of an exporter that is gone may be another user's by now.
    peer_may_send_descriptors(fd, false);
    if (connect(fd, (struct sockaddr *)&address, size) == 0) {
        if (peer_of(fd) != PEER_SAME_USER) {
            peer_turn_away(fd);
            return -1;
        }
        peer_may_send_descriptors(fd, true);
        // A child of an exporter that is gone has its socket still, and never answers. In another pid namespace the
        // number says nothing.
        const bool lives = peer_pid(fd) != pid || kill(pid, 0) == 0 || errno != ESRCH;
        if (lives && send(fd, key, 16, MSG_NOSIGNAL) == 16) got = receive(fd, memory);
    }
    close(fd);
    return got;
}
