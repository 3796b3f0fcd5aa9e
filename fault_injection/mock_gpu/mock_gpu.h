/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Inside of the mock GPU: a simulation of what nvidia.ko and a Turing GPU are to nvidia-uvm. See README.md for what it
 * models and what it does not prove.
 *
 * One mutex, `mock_lock`, protects all state but the fault buffers, which the interrupt handler of nvidia-uvm reads.
 */
#ifndef MOCK_GPU_H
#define MOCK_GPU_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/wait.h>

#include "nv_uvm_types.h"
#include "mock_gpu_ioctl.h"

#define MOCK_VIDEO_MEMORY (512ULL << 20)
#define MOCK_CHUNK (2ULL << 20)
#define MOCK_CHUNKS (MOCK_VIDEO_MEMORY / MOCK_CHUNK)
#define MOCK_FAULT_ENTRIES 1024
#define MOCK_PACKET_WORDS 8
/* MMU engine id of the graphics engine's VEID 0 (dev_fault.h of Turing). */
#define MOCK_GRAPHICS_ENGINE 64
#define MOCK_CE0_ENGINE 15
#define MOCK_HOST0_ENGINE 32

#define MOCK_EXPORT(name) EXPORT_SYMBOL(name)

struct file;
struct pci_dev;

extern struct mutex mock_lock;
extern struct pci_dev *mock_pci_device;
extern const u8 mock_uuid[16];
extern struct mock_statistics mock_counts;

/* A GPU virtual address space. UVM's own are reached by RM's allocations, a client's by its page tables. */
struct mock_vas {
	bool internal;
	bool has_directory;
	bool directory_in_video_memory;
	u64 directory;
};

/* A client's channel. Freed when neither the descriptor that made it nor UVM holds it. */
struct mock_user_channel {
	struct list_head node;
	struct mock_channel is;
	struct file *owner;
	struct mock_vas *vas;	/* while UVM holds it */
	u64 instance;
	u32 id;
	bool stopped;		/* off the runlist: its work is preempted, new work as well */
};

struct mock_allocation {
	struct list_head node;
	struct mock_memory is;
	struct file *owner;
	unsigned int held;	/* duplicates that UVM has */
	u32 id;
};

/* A channel of UVM itself, with a pushbuffer that the engine interprets. */
struct mock_internal_channel {
	struct list_head node;
	struct mock_vas *vas;
	u32 entries;
	u32 get;
	u64 *fifo;
	u32 *registers;		/* a page: GP_GET, GP_PUT, submission token, and the error notifier in its second half */
	NvNotification *notifier;
	u64 position;
	u32 left;
	bool stopped;
	u32 method[0x1000 / 4];
};

struct mock_stalled_access {
	struct list_head node;
	struct mock_access is;
	struct mock_user_channel *channel;
	bool faulted;
	bool finished;
	bool abandoned;		/* its process is gone: freed when it is finished */
};

extern struct list_head mock_user_channels;
extern struct list_head mock_allocations;
extern struct list_head mock_internal_channels;
extern struct list_head mock_accesses;

/* memory.c */
int mock_memory_init(void);
void mock_memory_exit(void);
void *mock_physical(bool in_video_memory, u64 address, u64 length);
void *mock_rm_pointer(u64 va);
long mock_take_chunk(void);
void mock_give_chunk(u64 physical);

/* page_tables.c */
u64 mock_translate(const struct mock_vas *vas, u64 va, u64 *page_size);
void *mock_page_pointer(u64 pte, u64 va, u64 page_size);
void *mock_pointer(const struct mock_vas *vas, u64 va, u64 *left);

/* channels.c */
struct mock_user_channel *mock_find_channel(u32 tsg, u32 veid);
struct mock_user_channel *mock_any_channel(u32 tsg);

/* faults.c */
int mock_faults_init(void);
void mock_faults_exit(void);
bool mock_tsg_is_dead(u32 tsg);
long mock_access_wait(struct mock_access *access);
void mock_start_access(struct mock_stalled_access *access);
void mock_end_access(struct mock_stalled_access *access);
extern wait_queue_head_t mock_finished_queue;
/* < 0: the process is being killed. Until the condition holds, or to a time in jiffies. */
#define mock_wait_killable(condition, end)                                                                        \
	wait_event_killable_timeout(mock_finished_queue, condition, max_t(long, 1, (long)((end) - jiffies)))
void mock_replay(void);
void mock_cancel_va(u64 directory, u64 va, u32 engine);
void mock_cancel_instance(u64 instance);
void mock_clear_faulted(u32 channel_id);
void mock_drop_accesses(struct mock_user_channel *channel);
bool mock_faults_pending(void);
void mock_reset_replayable(void);

/* burst.c */
long mock_run_burst(struct mock_burst *burst);

/* engine.c */
int mock_engine_start(void);
void mock_engine_stop(void);

/* rm_gpu.c */
bool mock_raise_interrupt(void);

/* rm_stall.c */
void mock_stall(const struct file *owner, struct mock_stall *wanted);
void mock_end_stall_of(const struct file *owner);
bool mock_wait_while_stalled(void);

/* rm_client.c */
long mock_create_channel(struct file *file, const struct mock_channel *wanted);
long mock_create_memory(struct file *file, struct mock_memory *wanted);
void mock_forget_owner(struct file *owner);

#endif
