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
#include <linux/workqueue.h>

typedef struct uvm_fault_isolation_sinks_struct uvm_fault_isolation_sinks_t;

/* In uvm_va_space_t. */
typedef struct
{
    /*
     * Not 0 from before the first sink is written until the end. Set with the
     * VA space lock held for read, never cleared.
     */
    int poisoned;

    /*
     * When it was last served, in turns of all VA spaces; 0 before its first
     * fault. Of those with fatal faults the one with the least is next.
     */
    NvU64 turn;

    /*
     * In jiffies: since when faults wait for a change of their range, and when
     * the last of them did; when its channels were begun to be stopped. 0: never.
     */
    unsigned long waits_since;
    unsigned long waited_last;
    unsigned long stopped_since;
    struct work_struct stop_work;

    uvm_fault_report_t report;
} uvm_va_space_isolation_t;

/*
 * In uvm_gpu_va_space_t. NULL as long as there is no sink, which is so for most
 * GPU VA spaces. Written by the bottom half of its GPU, which is one thread,
 * with the VA space lock held for read; taken apart after the GPU VA space has
 * left its VA space, which takes that lock for write.
 */
typedef struct
{
    uvm_fault_isolation_sinks_t *sinks;
} uvm_gpu_va_space_isolation_t;

void uvm_fault_isolation_va_space_init(uvm_va_space_t *va_space);
void uvm_fault_isolation_va_space_deinit(uvm_va_space_t *va_space);
void uvm_fault_isolation_gpu_va_space_deinit(uvm_gpu_va_space_t *gpu_va_space);

/*
 * To be asked with the lock held under which the thing would be added: the VA
 * space lock for write, which excludes containment, or an external range
 * tree's lock, which excludes a sink being placed in that range.
 */
#define uvm_fault_isolation_admit(va_space) \
    (unlikely(READ_ONCE((va_space)->isolation.poisoned)) ? NV_ERR_INVALID_STATE : NV_OK)

/*
 * A block of HMM is about to be made around an address of a poisoned VA space:
 * as much of it as sinks leave. NV_ERR_INVALID_ADDRESS if there is one at the
 * address: any other status would be taken for an error of UVM's own, and end a
 * copy engine's channel.
 *
 * LOCKING: the VA space lock must be held, for read at least, and blocks_lock.
 */
__cold NV_STATUS uvm_fault_isolation_clip_block(uvm_va_space_t *va_space, NvU64 address, NvU64 *start, NvU64 *end);

/*
 * NV_OK: the access can be replayed. The faulting address resolves then, or
 * faults once more: if the client was just changing its external range, for
 * the bottom half must not wait for that, as it can take a lock of RM's; if it
 * is the turn of others; if the client is being stopped. Anything else: nothing
 * that the caller would have to undo, the fault is to be cancelled as ever.
 *
 * Cold, as is the next: or the compiler keeps registers for these calls on the
 * path of faults that need neither.
 *
 * LOCKING: the VA space lock must be held, for read at least. Bottom half of
 *          the GPU only.
 */
__cold NV_STATUS uvm_fault_isolation_contain(uvm_gpu_va_space_t *gpu_va_space, uvm_fault_buffer_entry_t *fault);

/*
 * Faults of several VA spaces are fatal, one of them is served first: is it this
 * one rather than the other? Each in turn, so that none waits for one that
 * faults again and again.
 */
__cold bool uvm_fault_isolation_goes_first(const uvm_va_space_t *va_space, const uvm_va_space_t *other);

#endif
