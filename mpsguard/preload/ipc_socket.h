// The sockets between the exporter and the importer of memory.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define IPC_MAGIC "mpsgIPC\1"

// A listening socket of that (random) abstract name, or -1.
int ipc_socket_listen(const uint8_t name[16], int backlog);

// Sets the limits of a connection.
void ipc_socket_limit(int fd);

// Passes `size` bytes, and a descriptor unless it is -1.
void ipc_socket_send(int fd, int memory_fd, const void *data, size_t size);

// Asks the process `pid` behind a name for the memory of a key; the descriptor, or -1.
int ipc_socket_ask(const uint8_t name[16], pid_t pid, const uint8_t key[16], uint64_t *memory);
