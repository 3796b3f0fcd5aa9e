// The sockets between the exporter and the importer of memory.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define IPC_MAGIC "mpsgIPC\1"

// A listening socket of that (random) abstract name, or -1.
int ipc_socket_listen(const uint8_t name[16], int backlog);

// Sets the limits of a connection. False if a process of another user is at its other end.
bool ipc_socket_prepare(int fd);

// Passes a descriptor and how much memory it stands for.
void ipc_socket_send(int fd, int memory_fd, uint64_t memory);

// Asks the process `pid` behind a name for the memory of a key; the descriptor, or -1.
int ipc_socket_ask(const uint8_t name[16], pid_t pid, const uint8_t key[16], uint64_t *memory);
