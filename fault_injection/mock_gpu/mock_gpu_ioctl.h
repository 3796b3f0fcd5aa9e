/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * /dev/mock-gpu: how a test drives the mock GPU. The test plays the part of CUDA and of the SMs: it makes channels in
 * time-slice groups (TSGs), gives them memory, and lets them access virtual addresses.
 *
 * What a descriptor made (channels, memory) goes with its last close, unless nvidia-uvm still holds it.
 */
#ifndef MOCK_GPU_IOCTL_H
#define MOCK_GPU_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define MOCK_GPU_TSGS 4096
#define MOCK_GPU_SUBCONTEXTS 64

/* Byte 0 to 15 of the only GPU's UUID. */
#define MOCK_GPU_UUID { 'm', 'o', 'c', 'k', '-', 'g', 'p', 'u', 0, 1, 2, 3, 4, 5, 6, 7 }

/* A channel in a TSG, in the subcontext (VEID) of one client. */
struct mock_channel {
	__u32 tsg;
	__u32 veid;
	__u32 hclient;		/* the RM handles under which UVM will ask for it */
	__u32 hchannel;
};

/* Physically contiguous video memory, zeroed. */
struct mock_memory {
	__u32 hclient;
	__u32 hmemory;
	__u64 size;		/* up to 2 MiB */
	__u32 page_size;	/* 4 KiB, 64 KiB or 2 MiB: the largest with which it can be mapped */
	__u32 read_only;
	__u64 physical;		/* out */
};

enum mock_access_kind { MOCK_READ, MOCK_WRITE, MOCK_ATOMIC, MOCK_PREFETCH };

enum mock_ending {
	MOCK_DONE,		/* completed on memory */
	MOCK_DONE_SPARSE,	/* completed on a sparse mapping: reads 0, writes dropped */
	MOCK_TSG_DEAD,		/* the TSG was torn down */
	MOCK_TIMEOUT,		/* still stalled at the deadline, then withdrawn */
	MOCK_PREEMPTED,		/* its channel was stopped */
};

/* One access of 8 bytes, waited for. */
struct mock_access {
	__u32 tsg;
	__u32 veid;
	__u32 kind;
	__u32 copy_engine;	/* not by an SM: the fault is a hub client's, and non-replayable */
	__u64 va;
	__u64 value;		/* in for writes and atomics (added), out for reads */
	__u32 deadline_ms;
	__u32 fault_type;	/* what a fault is reported as if it is not 0: see MOCK_FAULT_* */
	__u32 host;		/* with copy_engine: by the PBDMA of its channel, as it reads a pushbuffer or a semaphore */
	__u32 orphan;		/* the subcontext's VA space is gone: reported through another channel of the TSG */
	__u32 ending;		/* out */
	__u32 faults;		/* out: fault packets it made */
};

/*
 * Accesses of 8 bytes, `in_flight` of them at a time: from `va` on with a stride, or, with a seed, at random in
 * [va, va + span). Returns when all have ended.
 */
struct mock_burst {
	__u32 tsg;
	__u32 veid;
	__u32 kind;
	__u32 in_flight;
	__u64 va;
	__u64 stride;
	__u64 span;
	__u64 seed;
	__u64 count;
	__u32 deadline_ms;
	__u32 padding;
	__u64 done;		/* out, as all that follows */
	__u64 faults;
	__u64 endings[5];	/* how many ended in which way */
	__u64 slowest_ms;	/* from its start to its end */
};

/* Fault types of the packet that no page table entry can cure. */
#define MOCK_FAULT_PDE_SIZE 1
#define MOCK_FAULT_UNBOUND_INSTANCE 4

struct mock_translation {
	__u32 tsg;
	__u32 veid;
	__u64 va;
	__u64 pte;		/* out */
	__u64 page_size;	/* out; 0: nothing is mapped */
};

/* RM takes its time: calls of nvidia-uvm for a client's memory wait from here on, until told otherwise. */
struct mock_stall {
	__u32 on;
	__u32 waiting;		/* out: calls that wait now */
};

struct mock_statistics {
	__u32 tsg;
	__u32 tsg_dead;
	__u64 replays;
	__u64 cancels_va;
	__u64 cancels_global;
	__u64 faults;
	__u64 reports;		/* non-replayable faults that were reported as fatal */
	__u64 chunks_used;	/* 2 MiB pieces of video memory */
	__u64 rm_allocations;
	__u64 channels;		/* of clients */
	__u64 address_spaces;
	__u64 accesses;		/* stalled at present */
	__u64 fatal_errors;	/* that UVM reported of itself */
};

#define MOCK_GPU_CHANNEL _IOW('g', 1, struct mock_channel)
#define MOCK_GPU_MEMORY _IOWR('g', 2, struct mock_memory)
#define MOCK_GPU_ACCESS _IOWR('g', 3, struct mock_access)
#define MOCK_GPU_TRANSLATE _IOWR('g', 4, struct mock_translation)
#define MOCK_GPU_STATISTICS _IOWR('g', 5, struct mock_statistics)
#define MOCK_GPU_STALL _IOWR('g', 6, struct mock_stall)
#define MOCK_GPU_BURST _IOWR('g', 7, struct mock_burst)

#endif
