// SPDX-License-Identifier: MIT OR GPL-2.0
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DEADLINE_MS 60000	/* a loaded machine takes its time; only what is lost takes so long */
#define QUEUE_ENTRIES 64

static const unsigned char uuid[16] = MOCK_GPU_UUID;

void die(const char *what)
{
	fprintf(stderr, "cannot %s: %s\n", what, strerror(errno));
	exit(3);
}

static void check(const char *what, int result, unsigned int status)
{
	if (result || status) {
		fprintf(stderr, "cannot %s: result %d, errno %d, status 0x%x\n", what, result, errno, status);
		exit(3);
	}
}

static unsigned int major_of(const char *name)
{
	char line[128], found[64];
	unsigned int number, result = 0;
	FILE *file = fopen("/proc/devices", "r");

	if (!file)
		die("open /proc/devices");
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "%u %63s", &number, found) == 2 && !strcmp(found, name))
			result = number;
	fclose(file);
	if (!result)
		die("find nvidia-uvm in /proc/devices");
	return result;
}

void make_device_nodes(void)
{
	unsigned int major = major_of("nvidia-uvm");

	if (mknod("/dev/nvidia-uvm", S_IFCHR | 0666, makedev(major, 0)) && errno != EEXIST)
		die("make /dev/nvidia-uvm");
	if (mknod("/dev/nvidia-uvm-tools", S_IFCHR | 0666, makedev(major, 1)) && errno != EEXIST)
		die("make /dev/nvidia-uvm-tools");
}

static int open_device(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die(path);
	return fd;
}

unsigned int try_channel(struct client *client, unsigned int hchannel)
{
	struct mock_channel channel = {
		.tsg = client->tsg, .veid = client->veid, .hclient = client->hclient, .hchannel = hchannel
	};
	UVM_REGISTER_CHANNEL_PARAMS parameters = { .hClient = client->hclient, .hChannel = hchannel, .rmCtrlFd = -1 };

	memcpy(parameters.gpuUuid.uuid, uuid, sizeof(uuid));
	if (ioctl(client->gpu, MOCK_GPU_CHANNEL, &channel))
		die("make a channel on the mock GPU");
	if (ioctl(client->uvm, UVM_REGISTER_CHANNEL, &parameters))
		die("ask for a channel");
	return parameters.rmStatus;
}

struct client open_client(unsigned int tsg, unsigned int veid)
{
	struct client client = { .tsg = tsg, .veid = veid, .hclient = 0xc0000000U + (unsigned int)getpid() * 64 + veid };
	UVM_INITIALIZE_PARAMS initialize = { .flags = 0 };
	UVM_MM_INITIALIZE_PARAMS mm = { 0 };
	UVM_REGISTER_GPU_PARAMS gpu = { .rmCtrlFd = -1 };
	UVM_REGISTER_GPU_VASPACE_PARAMS space = { .rmCtrlFd = -1, .hClient = client.hclient, .hVaSpace = 1 };
	int result;

	memcpy(gpu.gpu_uuid.uuid, uuid, sizeof(uuid));
	memcpy(space.gpuUuid.uuid, uuid, sizeof(uuid));
	client.gpu = open_device("/dev/mock-gpu");
	client.uvm = open_device("/dev/nvidia-uvm");
	client.mm = open_device("/dev/nvidia-uvm");
	result = ioctl(client.uvm, UVM_INITIALIZE, &initialize);
	check("initialize a VA space", result, initialize.rmStatus);
	mm.uvmFd = client.uvm;
	result = ioctl(client.mm, UVM_MM_INITIALIZE, &mm);
	if (mm.rmStatus == NV_WARN_NOTHING_TO_DO)	/* without HMM and ATS there is no need of it */
		mm.rmStatus = NV_OK;
	check("initialize the mm of a VA space", result, mm.rmStatus);
	result = ioctl(client.uvm, UVM_REGISTER_GPU, &gpu);
	check("register the GPU", result, gpu.rmStatus);
	result = ioctl(client.uvm, UVM_REGISTER_GPU_VASPACE, &space);
	check("register a GPU VA space", result, space.rmStatus);
	check("register a channel", 0, try_channel(&client, 2));
	return client;
}

void close_client(struct client *client)
{
	close(client->mm);
	close(client->uvm);
	close(client->gpu);
}

struct mock_access access_full(const struct client *client, struct mock_access wanted)
{
	wanted.tsg = client->tsg;
	if (!wanted.orphan)
		wanted.veid = client->veid;
	if (!wanted.deadline_ms)
		wanted.deadline_ms = DEADLINE_MS;
	if (ioctl(client->gpu, MOCK_GPU_ACCESS, &wanted))
		die("access memory on the mock GPU");
	return wanted;
}

struct mock_access access_as(const struct client *client, enum mock_access_kind kind, uint64_t va, uint64_t value)
{
	return access_full(client, (struct mock_access){ .kind = kind, .va = va, .value = value });
}

struct mock_burst access_many(const struct client *client, struct mock_burst wanted)
{
	wanted.tsg = client->tsg;
	wanted.veid = client->veid;
	if (!wanted.deadline_ms)
		wanted.deadline_ms = 2 * DEADLINE_MS;
	if (ioctl(client->gpu, MOCK_GPU_BURST, &wanted))
		die("run a kernel on the mock GPU");
	return wanted;
}

struct mock_translation translate(const struct client *client, uint64_t va)
{
	struct mock_translation question = { .tsg = client->tsg, .veid = client->veid, .va = va };

	if (ioctl(client->gpu, MOCK_GPU_TRANSLATE, &question))
		die("walk the page tables");
	return question;
}

struct mock_statistics statistics(unsigned int tsg)
{
	struct mock_statistics answer = { .tsg = tsg };
	int fd = open_device("/dev/mock-gpu");

	if (ioctl(fd, MOCK_GPU_STATISTICS, &answer))
		die("ask for statistics");
	close(fd);
	return answer;
}

#define ASK(client, request, parameters)						\
	do {										\
		if (ioctl((client)->uvm, request, parameters))				\
			die(#request);							\
	} while (0)

unsigned int try_range(const struct client *client, uint64_t base, uint64_t length)
{
	UVM_CREATE_EXTERNAL_RANGE_PARAMS parameters = { .base = base, .length = length };

	ASK(client, UVM_CREATE_EXTERNAL_RANGE, &parameters);
	return parameters.rmStatus;
}

unsigned int try_map(const struct client *client, uint64_t base, uint64_t length, unsigned int hmemory,
		     UvmGpuMappingType type)
{
	static UVM_MAP_EXTERNAL_ALLOCATION_PARAMS parameters;	/* too large for the stack */

	memset(&parameters, 0, sizeof(parameters));
	parameters.base = base;
	parameters.length = length;
	memcpy(parameters.perGpuAttributes[0].gpuUuid.uuid, uuid, sizeof(uuid));
	parameters.perGpuAttributes[0].gpuMappingType = type;
	parameters.gpuAttributesCount = 1;
	parameters.rmCtrlFd = -1;
	parameters.hClient = client->hclient;
	parameters.hMemory = hmemory;
	ASK(client, UVM_MAP_EXTERNAL_ALLOCATION, &parameters);
	return parameters.rmStatus;
}

#define TRY_ON_GPU(function, request, type)							\
	unsigned int function(const struct client *client, uint64_t base, uint64_t length)	\
	{											\
		type parameters = { .base = base, .length = length };				\
												\
		memcpy(parameters.gpuUuid.uuid, uuid, sizeof(uuid));				\
		ASK(client, request, &parameters);						\
		return parameters.rmStatus;							\
	}

TRY_ON_GPU(try_sparse, UVM_MAP_EXTERNAL_SPARSE, UVM_MAP_EXTERNAL_SPARSE_PARAMS)
TRY_ON_GPU(try_unmap, UVM_UNMAP_EXTERNAL, UVM_UNMAP_EXTERNAL_PARAMS)
TRY_ON_GPU(try_parallelism_region, UVM_MAP_DYNAMIC_PARALLELISM_REGION, UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS)

unsigned int try_free(const struct client *client, uint64_t base, uint64_t length)
{
	UVM_FREE_PARAMS parameters = { .base = base };
	const size_t behind_base = sizeof(parameters.base);

	/* From branch 590 on a range is freed by its base alone, and nothing but the status is behind that. */
	if (offsetof(UVM_FREE_PARAMS, rmStatus) > behind_base)
		memcpy((char *)&parameters + behind_base, &length, sizeof(length));

	ASK(client, UVM_FREE, &parameters);
	return parameters.rmStatus;
}

unsigned int try_semaphore_pool(const struct client *client, uint64_t base, uint64_t length)
{
	static UVM_ALLOC_SEMAPHORE_POOL_PARAMS parameters;

	memset(&parameters, 0, sizeof(parameters));
	parameters.base = base;
	parameters.length = length;
	ASK(client, UVM_ALLOC_SEMAPHORE_POOL, &parameters);
	return parameters.rmStatus;
}

void *try_managed(const struct client *client, uint64_t base, uint64_t length)
{
	return mmap((void *)(uintptr_t)base, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, client->uvm,
		    (off_t)base);
}

unsigned int try_tools_queue(const struct client *client, int *fd, UvmToolsEventControlData **control)
{
	size_t queue = 64 * KIB;
	char *memory = mmap(NULL, 2 * queue, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS tracker;
	UVM_TOOLS_SET_NOTIFICATION_THRESHOLD_PARAMS threshold = { .notificationThreshold = 1 };
	UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS_PARAMS events = { .eventTypeFlags = UVM_EVENT_ENABLE_FATAL_FAULT };
#ifdef UVM_TOOLS_INIT_EVENT_TRACKER_V2
	unsigned long request = UVM_TOOLS_INIT_EVENT_TRACKER_V2;
#else
	unsigned long request = UVM_TOOLS_INIT_EVENT_TRACKER;
#endif

	if (memory == MAP_FAILED)
		die("make an event queue");
	memset(&tracker, 0, sizeof(tracker));
	tracker.queueBuffer = (uintptr_t)memory;
	tracker.queueBufferSize = QUEUE_ENTRIES;
	tracker.controlBuffer = (uintptr_t)(memory + queue);
	tracker.uvmFd = (unsigned int)client->uvm;
#ifndef UVM_TOOLS_INIT_EVENT_TRACKER_V2
	/* Branch 550 has the version of the queue's layout behind the status, where 535 has padding. */
	*(unsigned int *)((char *)&tracker + offsetof(UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS, rmStatus) + 4) = 1;
#endif
	*control = (UvmToolsEventControlData *)(memory + queue);
	*fd = open_device("/dev/nvidia-uvm-tools");
	if (ioctl(*fd, request, &tracker) || ioctl(*fd, UVM_TOOLS_SET_NOTIFICATION_THRESHOLD, &threshold) ||
	    ioctl(*fd, UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS, &events))
		die("set an event queue up");
	return tracker.rmStatus | threshold.rmStatus | events.rmStatus;
}

bool has_hmm(const struct client *client)
{
	UVM_PAGEABLE_MEM_ACCESS_PARAMS parameters = { 0 };

	ASK(client, UVM_PAGEABLE_MEM_ACCESS, &parameters);
	return parameters.rmStatus == NV_OK && parameters.pageableMemAccess;
}

unsigned int try_unregister_gpu(const struct client *client)
{
	UVM_UNREGISTER_GPU_PARAMS parameters = { 0 };

	memcpy(parameters.gpu_uuid.uuid, uuid, sizeof(uuid));
	ASK(client, UVM_UNREGISTER_GPU, &parameters);
	return parameters.rmStatus;
}

unsigned int stall_rm(const struct client *client, bool on)
{
	struct mock_stall stall = { .on = on };

	if (ioctl(client->gpu, MOCK_GPU_STALL, &stall))
		die("stall RM");
	return stall.waiting;
}

unsigned int new_memory(const struct client *client, uint64_t size, uint64_t page_size, bool read_only)
{
	static unsigned int next = 0x100;
	struct mock_memory memory = {
		.hclient = client->hclient, .hmemory = next++, .size = size, .page_size = (unsigned int)page_size,
		.read_only = read_only
	};

	if (ioctl(client->gpu, MOCK_GPU_MEMORY, &memory))
		die("get video memory");
	return memory.hmemory;
}

void map_new(const struct client *client, uint64_t base, uint64_t range, uint64_t mapped, uint64_t page_size,
	     UvmGpuMappingType type)
{
	check("make a range", 0, try_range(client, base, range));
	check("map memory", 0, try_map(client, base, mapped, new_memory(client, mapped, page_size, false), type));
}

static int open_parameter(const char *name, int flags)
{
	char path[160];

	snprintf(path, sizeof(path), "/sys/module/nvidia_uvm/parameters/%s", name);
	return open(path, flags | O_CLOEXEC);
}

long get_parameter(const char *name)
{
	char text[24] = "";
	int fd = open_parameter(name, O_RDONLY);
	ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	return length > 0 ? strtol(text, NULL, 10) : -1;
}

bool set_parameter(const char *name, unsigned int value)
{
	int fd = open_parameter(name, O_WRONLY), length;
	char text[16];
	bool written;

	if (fd < 0)
		return false;
	length = snprintf(text, sizeof(text), "%u", value);
	written = write(fd, text, (size_t)length) == length;
	close(fd);
	return written;
}
