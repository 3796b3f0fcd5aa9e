/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Contain the fatal memory faults of one client of a time-slice group (TSG)
 * that it shares with others, as under MPS.
 *
 * The stock driver cancels a fault that it cannot service, and firmware then
 * tears the whole TSG down. Here the address is made to resolve instead, to a
 * sink in the page tables of that client alone, and the access is replayed.
 * The client's VA space is poisoned first: it gets no new range, mapping or
 * channel, so that nothing is ever mapped over a sink.
 */
#ifndef __UVM_FAULT_ISOLATION_H__
#define __UVM_FAULT_ISOLATION_H__

#include "uvm_forward_decl.h"
#include "uvm_hal_types.h"
#include "uvm_fault_report.h"
#include "nvstatus.h"
#include <linux/compiler.h>
#include <linux/list.h>

/* In uvm_va_space_t. */
typedef struct
{
    /*
     * Not 0 from before the first sink is written until the end. Set with the
     * VA space lock held for read, never cleared.
     */
    int poisoned;

    uvm_fault_report_t report;
} uvm_va_space_isolation_t;

/*
 * In uvm_gpu_va_space_t. Written by the bottom half of its GPU, which is one
 * thread, with the VA space lock held for read; taken apart after the GPU VA
 * space has left its VA space, which takes that lock for write. The list is
 * empty as long as it has no head: most GPU VA spaces never get a sink.
 */
typedef struct
{
    struct hlist_head sinks;
    NvU64 sink_count;

    /* Only with uvm_fault_isolation_real_sink. */
    uvm_mem_t *page;
} uvm_gpu_va_space_isolation_t;

void uvm_fault_isolation_gpu_va_space_deinit(uvm_gpu_va_space_t *gpu_va_space);

/*
 * To be asked with the lock held under which the thing would be added: the VA
 * space lock for write, an external range tree's lock, or HMM's blocks_lock.
 * All but the first exclude a sink being placed at the same time; the first
 * excludes containment as a whole.
 */
#define uvm_fault_isolation_admit(va_space) \
    (unlikely(READ_ONCE((va_space)->isolation.poisoned)) ? NV_ERR_INVALID_STATE : NV_OK)

/*
 * NV_OK: the access can be replayed. The faulting address resolves then, or
 * faults once more, if the client was just changing its external range; the
 * bottom half must not wait for that, for it can take a lock of RM's. Anything
 * else: nothing that the caller would have to undo, the fault is to be
 * cancelled as ever.
 *
 * Cold, or the compiler keeps registers for the call on the path of faults that
 * do not need it.
 *
 * LOCKING: the VA space lock must be held, for read at least. Bottom half of
 *          the GPU only.
 */
__cold NV_STATUS uvm_fault_isolation_contain(uvm_gpu_va_space_t *gpu_va_space, uvm_fault_buffer_entry_t *fault);

#endif
