/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#include "uvm_fault_isolation.h"
#include "uvm_fault_isolation_branch.h"
#include "uvm_fault_isolation_sink.h"
#include "uvm_fault_report.h"
#include "uvm_api.h"
#include "uvm_common.h"
#include "uvm_gpu.h"
#include "uvm_hal.h"
#include "uvm_tools.h"
#include "uvm_user_channel.h"
#include "uvm_va_range.h"
#include "uvm_va_space.h"
#include <linux/jiffies.h>
#include <linux/module.h>

enum
{
    POLICY_NEVER,
    POLICY_SHARED_TSG,
    POLICY_ALWAYS,
};

static uint uvm_fault_isolation = POLICY_SHARED_TSG;
module_param(uvm_fault_isolation, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation,
                 "Contain fatal memory faults: 0 never, 1 where the TSG is shared with another VA space (MPS), 2 always.");

static uint uvm_fault_isolation_wait_ms = 2000;
module_param(uvm_fault_isolation_wait_ms, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_wait_ms,
                 "For so long a fault waits for a change of the range it is in; then its client's channels are stopped.");

/* RM waits for a channel to become idle before it preempts it. */
static uint uvm_fault_isolation_stop_ms = 10000;
module_param(uvm_fault_isolation_stop_ms, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_stop_ms,
                 "For so long faults of a client that is being stopped are replayed; then they are cancelled.");

/* For mpsguard-kmod status: this module is ours. */
static char *uvm_fault_isolation_version = UVM_ISOLATION_VERSION;
module_param(uvm_fault_isolation_version, charp, S_IRUGO);
MODULE_PARM_DESC(uvm_fault_isolation_version, "Version of the fault isolation.");

/* A wait that was not heard of for so long is over. */
#define WAIT_IS_OVER_MS 1000

/* Faults of VA spaces are served in turn. */
static atomic64_t turns = ATOMIC64_INIT(0);

static void stop_entry(struct work_struct *work);

void uvm_fault_isolation_va_space_init(uvm_va_space_t *va_space)
{
    INIT_WORK(&va_space->isolation.stop_work, stop_entry);
    uvm_fault_report_va_space_init(va_space);
}

void uvm_fault_isolation_va_space_deinit(uvm_va_space_t *va_space)
{
    flush_work(&va_space->isolation.stop_work);
    uvm_fault_report_va_space_deinit(va_space);
}

void uvm_fault_isolation_gpu_va_space_deinit(uvm_gpu_va_space_t *gpu_va_space)
{
    uvm_fault_isolation_sinks_free(gpu_va_space);
}

static void note_contained(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault)
{
    uvm_tools_record_gpu_fatal_fault(gpu_va_space->gpu->id, gpu_va_space->va_space, fault, fault->fatal_reason);
    uvm_fault_report_contained(gpu_va_space, fault);
}

static bool channel_shares_tsg(const uvm_gpu_va_space_t *gpu_va_space, const uvm_user_channel_t *channel)
{
    const uvm_user_channel_subctx_info_t *info = channel->subctx_info;
    NvU32 i;

    if (!channel->in_subctx || !info)
        return false;

    for (i = 0; i < channel->tsg.max_subctx_count; i++) {
        if (info->subctxs[i].refcount > 0 && !UVM_ISOLATION_IS_SUBCTX_OF(&info->subctxs[i], gpu_va_space))
            return true;
    }

    return false;
}

/*
 * Does the client share a TSG with another VA space? Which of its TSGs the
 * fault is from cannot always be told: the packet can name any channel of it.
 */
static bool shares_tsg(uvm_gpu_va_space_t *gpu_va_space)
{
    uvm_parent_gpu_t *parent_gpu = gpu_va_space->gpu->parent;
    uvm_user_channel_t *channel;
    bool shared = false;

    /* The list is protected by the VA space lock, what the channels point to by this one. */
    uvm_spin_lock(&parent_gpu->instance_ptr_table_lock);
    list_for_each_entry(channel, &gpu_va_space->registered_channels, list_node)
        shared = shared || channel_shares_tsg(gpu_va_space, channel);
    uvm_spin_unlock(&parent_gpu->instance_ptr_table_lock);

    return shared;
}

static void poison(uvm_gpu_va_space_t *gpu_va_space)
{
    WRITE_ONCE(gpu_va_space->va_space->isolation.poisoned, 1);
}

static void stop_channels(uvm_va_space_t *va_space)
{
    uvm_va_space_down_read_rm(va_space);
    uvm_va_space_stop_all_user_channels(va_space);
    uvm_va_space_up_read_rm(va_space);
}

/* Not on a queue of UVM's: RM can take seconds. */
static void stop_entry(struct work_struct *work)
{
    UVM_ENTRY_VOID(stop_channels(container_of(work, uvm_va_space_t, isolation.stop_work)));
}

static bool is_past(unsigned long since, uint limit_ms)
{
    return time_after(jiffies, since + msecs_to_jiffies(limit_ms));
}

/* Its channels are stopped, from another thread; until that is done, its faults are replayed. */
static NV_STATUS stop_client(uvm_va_space_t *va_space, NV_STATUS reason)
{
    uvm_va_space_isolation_t *isolation = &va_space->isolation;

    if (!isolation->stopped_since) {
        isolation->stopped_since = jiffies | 1;
        uvm_fault_report_stopped(va_space, reason);
        queue_work(system_long_wq, &isolation->stop_work);
    }

    return is_past(isolation->stopped_since, READ_ONCE(uvm_fault_isolation_stop_ms)) ? reason : NV_OK;
}

/* The range of the fault is being changed. It is replayed, for a while. */
static NV_STATUS wait_for_range(uvm_va_space_t *va_space)
{
    uvm_va_space_isolation_t *isolation = &va_space->isolation;

    if (!isolation->waits_since || is_past(isolation->waited_last, WAIT_IS_OVER_MS))
        isolation->waits_since = jiffies | 1;
    isolation->waited_last = jiffies;

    if (is_past(isolation->waits_since, READ_ONCE(uvm_fault_isolation_wait_ms)))
        return stop_client(va_space, NV_ERR_BUSY_RETRY);

    return NV_OK;
}

bool uvm_fault_isolation_goes_first(const uvm_va_space_t *va_space, const uvm_va_space_t *other)
{
    return READ_ONCE(va_space->isolation.turn) < READ_ONCE(other->isolation.turn);
}

/*
 * Can an entry in the client's page tables cure it? Where the CPU has fewer bits
 * of address than the GPU, there are addresses that UVM maps nothing at, but
 * that the GPU translates.
 */
static bool is_curable(const uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault)
{
    return fault->fault_type < UVM_FAULT_TYPE_FATAL &&
           fault->is_virtual &&
           !gpu_va_space->ats.enabled &&
           UVM_ISOLATION_HAS_SPARSE(gpu_va_space->gpu->parent) &&
           (uvm_gpu_can_address(gpu_va_space->gpu, fault->fault_address, PAGE_SIZE) ||
            uvm_gpu_can_address_kernel(gpu_va_space->gpu, fault->fault_address, PAGE_SIZE));
}

static bool policy_allows(uvm_gpu_va_space_t *gpu_va_space)
{
    uint policy = READ_ONCE(uvm_fault_isolation);

    /* The agent may be gone once it has a poisoned client to end: it is in the list when the agent comes back. */
    if (!READ_ONCE(gpu_va_space->va_space->isolation.poisoned) && !uvm_fault_report_is_heard())
        return false;

    return policy == POLICY_ALWAYS || (policy == POLICY_SHARED_TSG && shares_tsg(gpu_va_space));
}

NV_STATUS uvm_fault_isolation_contain(uvm_gpu_va_space_t *gpu_va_space, uvm_fault_buffer_entry_t *fault)
{
    uvm_va_space_t *va_space = gpu_va_space->va_space;
    uvm_va_range_t *va_range;
    NV_STATUS status;

    uvm_assert_rwsem_locked(&va_space->lock);

    WRITE_ONCE(va_space->isolation.turn, atomic64_inc_return(&turns));

    if (!policy_allows(gpu_va_space) || !is_curable(gpu_va_space, fault))
        return NV_ERR_NOT_SUPPORTED;

    /* Channels' and semaphores' ranges have page tables with a life of their own. */
    va_range = uvm_va_range_find(va_space, fault->fault_address);
    if (va_range && va_range->type != UVM_VA_RANGE_TYPE_EXTERNAL && va_range->type != UVM_VA_RANGE_TYPE_MANAGED)
        return NV_ERR_NOT_SUPPORTED;

    poison(gpu_va_space);

    if (va_space->isolation.stopped_since)
        return stop_client(va_space, NV_ERR_INSUFFICIENT_RESOURCES);

    status = uvm_fault_isolation_sink_place(gpu_va_space, va_range, fault);
    switch (status) {
        case NV_OK:
            note_contained(gpu_va_space, fault);
            return NV_OK;
        case NV_WARN_NOTHING_TO_DO:
        case NV_WARN_MORE_PROCESSING_REQUIRED:
            return NV_OK;
        case NV_ERR_BUSY_RETRY:
            return wait_for_range(va_space);
        case NV_ERR_INSUFFICIENT_RESOURCES:
            return stop_client(va_space, status);
        default:
            return status;
    }
}
