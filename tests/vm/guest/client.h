/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The part of CUDA that a client of nvidia-uvm plays, against the mock GPU. */
#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "uvm_linux_ioctl.h"
#include "uvm_ioctl.h"
#include "mock_gpu_ioctl.h"

#define KIB 1024ULL
#define MIB (1024ULL * KIB)
#define GIB (1024ULL * MIB)

/* One client: its descriptors, and the place of its channel. */
struct client {
	int uvm, mm, gpu;
	unsigned int tsg, veid, hclient;
};

/* Make the device nodes; end the process with a line if that cannot be done. */
void make_device_nodes(void);

/* Both end the process with a line if the driver refuses. */
struct client open_client(unsigned int tsg, unsigned int veid);
void close_client(struct client *client);

struct mock_access access_full(const struct client *client, struct mock_access wanted);
struct mock_access access_as(const struct client *client, enum mock_access_kind kind, uint64_t va, uint64_t value);
/* Many accesses; the place of the client's channel is filled in, and a deadline if there is none. */
struct mock_burst access_many(const struct client *client, struct mock_burst wanted);
struct mock_translation translate(const struct client *client, uint64_t va);
struct mock_statistics statistics(unsigned int tsg);

/* These give the driver's status, NV_OK (0) if it does what it is asked. */
unsigned int try_channel(struct client *client, unsigned int hchannel);
unsigned int try_range(const struct client *client, uint64_t base, uint64_t length);
unsigned int try_map(const struct client *client, uint64_t base, uint64_t length, unsigned int hmemory,
		     UvmGpuMappingType type);
unsigned int try_sparse(const struct client *client, uint64_t base, uint64_t length);
unsigned int try_unmap(const struct client *client, uint64_t base, uint64_t length);
unsigned int try_free(const struct client *client, uint64_t base, uint64_t length);
unsigned int try_semaphore_pool(const struct client *client, uint64_t base, uint64_t length);
unsigned int try_parallelism_region(const struct client *client, uint64_t base, uint64_t length);
void *try_managed(const struct client *client, uint64_t base, uint64_t length);
unsigned int try_tools_queue(const struct client *client, int *fd, UvmToolsEventControlData **control);

bool has_hmm(const struct client *client);
unsigned int try_unregister_gpu(const struct client *client);
/* Calls of the driver for memory that wait for RM now. */
unsigned int stall_rm(const struct client *client, bool on);

/* New video memory under a handle; ends the process if the GPU has none. */
unsigned int new_memory(const struct client *client, uint64_t size, uint64_t page_size, bool read_only);

/* A range at `base` with memory of `page_size` mapped at its start; ends the process if it is refused. */
void map_new(const struct client *client, uint64_t base, uint64_t range, uint64_t mapped, uint64_t page_size,
	     UvmGpuMappingType type);

/* A parameter of nvidia-uvm; false if the module has none of that name. */
bool set_parameter(const char *name, unsigned int value);
/* Its value; -1 if there is none. */
long get_parameter(const char *name);

_Noreturn void die(const char *what);

#endif
