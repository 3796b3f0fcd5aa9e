// The other end of a connection: which user's it is, and how another user's is turned away.
//
// A peer's messages may carry descriptors, and the last close of one may take as long as its sender likes (a TCP socket
// that lingers). So nothing of another user's is received, and what it has sent is not closed where that would hold a
// thread up.
#pragma once

#include <stdbool.h>
#include <sys/types.h>

typedef enum {
    PEER_STRANGER,
    PEER_SAME_USER,
    PEER_ROOT,  // of the machine: it may read every process's memory
} peer_kind;

// The user of the process at the other end, as the kernel knew it when the connection was made. For root's own program,
// root is the same user.
peer_kind peer_of(int fd);

// The number of the process at the other end; 0 for one outside of our pid namespace, -1 if the kernel does not say.
pid_t peer_pid(int fd);

// Lets the other end of a socket send descriptors, or not; connections inherit it from their listener. False before Linux
// 6.16, where they always come.
bool peer_may_send_descriptors(int fd, bool may);

// Closes a stranger's connection with all that it has sent, and waits for nothing that it has sent.
void peer_turn_away(int fd);
