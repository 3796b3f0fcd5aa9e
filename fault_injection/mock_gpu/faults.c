// SPDX-License-Identifier: MIT OR GPL-2.0
/* Accesses of the SMs and copy engines, the fault buffers, and the death of a TSG. */
#include <linux/bitmap.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

#include "nv_uvm_interface.h"
#include "mock_gpu.h"

/* Words of the replayable buffer's register page. */
enum { GET, PUT, INTERRUPT, ENABLE_SET, ENABLE_CLEAR, PREFETCH_CONTROL, INFO, FAULT_REGISTERS };

#define POINTER_MASK 0xfffffU
#define SHADOW_ENTRIES 256
/* The packet's last word (clc369.h). */
#define PACKET_REPLAYABLE BIT(7)
#define PACKET_ACCESS_SHIFT 16
#define PACKET_HUB BIT(20)
#define PACKET_REPLAYABLE_ENABLED BIT(30)
#define PACKET_VALID BIT(31)
#define PACKET_CLIENT_CE0 (1U << 8)
#define PACKET_CLIENT_HOST (6U << 8)
#define FAULT_TYPE_PTE 2
#define FAULT_TYPE_READ_ONLY 6

LIST_HEAD(mock_accesses);
DECLARE_WAIT_QUEUE_HEAD(mock_finished_queue);
static DECLARE_BITMAP(dead_tsgs, MOCK_GPU_TSGS);

/* The buffers are written under mock_lock and read by nvidia-uvm, some of it with interrupts off. */
static DEFINE_SPINLOCK(buffer_lock);
static u32 (*replayable)[MOCK_PACKET_WORDS];
static u32 fault_registers[FAULT_REGISTERS];
static u32 shadow[SHADOW_ENTRIES][MOCK_PACKET_WORDS];
static unsigned int shadow_put, shadow_get;

int mock_faults_init(void)
{
	replayable = vzalloc(MOCK_FAULT_ENTRIES * sizeof(*replayable));
	return replayable ? 0 : -ENOMEM;
}

void mock_faults_exit(void)
{
	vfree(replayable);
}

bool mock_tsg_is_dead(u32 tsg)
{
	return test_bit(tsg, dead_tsgs);
}

static void fill_packet(u32 *packet, const struct mock_stalled_access *access, u32 engine, u32 last_word)
{
	u64 instance = access->channel->instance;

	packet[0] = lower_32_bits(instance) & ~0xfffU;
	packet[1] = upper_32_bits(instance);
	packet[2] = lower_32_bits(access->is.va) & ~0xfffU;
	packet[3] = upper_32_bits(access->is.va);
	packet[4] = (u32)ktime_get_ns();
	packet[5] = 0;
	packet[6] = engine;
	smp_wmb();	/* a reader that sees the packet valid sees the rest of it */
	packet[7] = last_word | PACKET_REPLAYABLE_ENABLED | PACKET_VALID;
}

static void report_fault(struct mock_stalled_access *access, u32 type)
{
	u32 word = (access->is.fault_type ?: type) | access->is.kind << PACKET_ACCESS_SHIFT;
	unsigned long flags;
	bool reported = false;

	spin_lock_irqsave(&buffer_lock, flags);
	if (access->is.copy_engine) {
		reported = shadow_put - shadow_get < SHADOW_ENTRIES;
		if (reported)
			fill_packet(shadow[shadow_put++ % SHADOW_ENTRIES], access,
				    access->is.host ? MOCK_HOST0_ENGINE : MOCK_CE0_ENGINE,
				    word | (access->is.host ? PACKET_CLIENT_HOST : PACKET_CLIENT_CE0) | PACKET_HUB);
	} else {
		u32 put = fault_registers[PUT] & POINTER_MASK, next = (put + 1) % MOCK_FAULT_ENTRIES;

		reported = next != (fault_registers[GET] & POINTER_MASK);
		if (reported) {
			fill_packet(replayable[put], access, MOCK_GRAPHICS_ENGINE + access->is.veid,
				    word | PACKET_REPLAYABLE);
			WRITE_ONCE(fault_registers[PUT], next);
		}
	}
	spin_unlock_irqrestore(&buffer_lock, flags);
	/* If the buffer is full the access stays where it is, and faults again at the next replay. */
	WARN_ONCE(!reported && access->is.copy_engine, "mock GPU: a shadow buffer is full, an access is lost\n");
	access->faulted = true;
	access->is.faults += reported;
	mock_counts.faults += reported;
}

static void finish(struct mock_stalled_access *access, enum mock_ending ending)
{
	access->is.ending = ending;
	access->finished = true;
	wake_up_all(&mock_finished_queue);
}

/* Free the finished accesses that are abandoned. */
static void reap(void)
{
	struct mock_stalled_access *each, *next;

	list_for_each_entry_safe(each, next, &mock_accesses, node)
		if (each->finished && each->abandoned) {
			list_del(&each->node);
			mock_counts.accesses--;
			kfree(each);
		}
}

static void perform(struct mock_stalled_access *access, u64 *memory)
{
	if (access->is.kind == MOCK_READ)
		access->is.value = *memory;
	else if (access->is.kind == MOCK_WRITE)
		*memory = access->is.value;
	else if (access->is.kind == MOCK_ATOMIC)
		*memory += access->is.value;
	finish(access, MOCK_DONE);
}

static void attempt(struct mock_stalled_access *access)
{
	bool read_only, writes = access->is.kind == MOCK_WRITE || access->is.kind == MOCK_ATOMIC;
	u64 page_size, pte = 0;

	if (mock_tsg_is_dead(access->is.tsg)) {
		finish(access, MOCK_TSG_DEAD);
		return;
	}
	if (access->channel->stopped && !access->is.orphan) {
		finish(access, MOCK_PREEMPTED);
		return;
	}
	page_size = 0;
	if (!access->is.orphan && !access->is.fault_type && access->channel->vas)
		pte = mock_translate(access->channel->vas, access->is.va, &page_size);
	if (page_size && !(pte & 1)) {
		access->is.value = access->is.kind == MOCK_READ ? 0 : access->is.value;
		finish(access, MOCK_DONE_SPARSE);
		return;
	}
	read_only = page_size && (pte & BIT_ULL(6));
	if (page_size && !(writes && read_only) && !(access->is.kind == MOCK_ATOMIC && (pte & BIT_ULL(7)))) {
		u64 *memory = mock_page_pointer(pte, access->is.va, page_size);

		if (memory) {
			perform(access, memory);
			return;
		}
	}
	report_fault(access, read_only ? FAULT_TYPE_READ_ONLY : FAULT_TYPE_PTE);
	if (access->is.kind == MOCK_PREFETCH)	/* reported and dropped */
		finish(access, MOCK_DONE);
}

static void tear_down(u32 tsg, const char *by, u64 va)
{
	struct mock_stalled_access *each;

	if (__test_and_set_bit(tsg, dead_tsgs))
		return;
	pr_info("mock GPU: Xid (simulated) 31: TSG %u torn down by %s at 0x%llx, with every client in it\n", tsg, by,
		va);
	list_for_each_entry(each, &mock_accesses, node)
		if (each->is.tsg == tsg && !each->finished)
			finish(each, MOCK_TSG_DEAD);
}

void mock_replay(void)
{
	struct mock_stalled_access *each;

	mock_counts.replays++;
	list_for_each_entry(each, &mock_accesses, node)
		if (!each->finished && each->faulted && !each->is.copy_engine)
			attempt(each);
	reap();
}

void mock_cancel_va(u64 directory, u64 va, u32 engine)
{
	struct mock_stalled_access *each;

	mock_counts.cancels_va++;
	list_for_each_entry(each, &mock_accesses, node)
		if (!each->finished && each->channel->vas && each->channel->vas->directory == directory &&
		    (each->is.va & ~0xfffULL) == va && engine == MOCK_GRAPHICS_ENGINE + each->is.veid)
			tear_down(each->is.tsg, "a cancel by address", va);
	reap();
}

static void tear_down_instance(u64 instance, const char *by, u64 va)
{
	struct mock_user_channel *each;

	list_for_each_entry(each, &mock_user_channels, node)
		if (each->instance == instance)
			tear_down(each->is.tsg, by, va);
	reap();
}

/* By any channel of a TSG, and with no address. */
void mock_cancel_instance(u64 instance)
{
	mock_counts.cancels_global++;
	tear_down_instance(instance, "a global cancel", 0);
}

void mock_clear_faulted(u32 channel_id)
{
	struct mock_stalled_access *each;

	list_for_each_entry(each, &mock_accesses, node)
		if (!each->finished && each->faulted && each->is.copy_engine && each->channel->id == channel_id)
			attempt(each);
	reap();
}

void mock_drop_accesses(struct mock_user_channel *channel)
{
	struct mock_stalled_access *each;

	lockdep_assert_held(&mock_lock);
	list_for_each_entry(each, &mock_accesses, node)
		if (!each->finished && each->channel == channel && !each->is.orphan)
			finish(each, MOCK_PREEMPTED);
	reap();
}

void mock_start_access(struct mock_stalled_access *access)
{
	lockdep_assert_held(&mock_lock);
	list_add_tail(&access->node, &mock_accesses);
	mock_counts.accesses++;
	attempt(access);
}

void mock_end_access(struct mock_stalled_access *access)
{
	lockdep_assert_held(&mock_lock);
	list_del(&access->node);
	mock_counts.accesses--;
	kfree(access);
}

long mock_access_wait(struct mock_access *request)
{
	struct mock_stalled_access *access = kzalloc(sizeof(*access), GFP_KERNEL);
	long left;

	if (!access)
		return -ENOMEM;
	access->is = *request;
	access->is.faults = 0;
	mutex_lock(&mock_lock);
	access->channel = request->orphan ? mock_any_channel(request->tsg) : mock_find_channel(request->tsg, request->veid);
	if (!access->channel) {
		mutex_unlock(&mock_lock);
		kfree(access);
		return -ENODEV;
	}
	mock_start_access(access);
	mutex_unlock(&mock_lock);

	left = mock_wait_killable(READ_ONCE(access->finished), jiffies + msecs_to_jiffies(request->deadline_ms));
	mutex_lock(&mock_lock);
	if (left < 0 && !access->finished) {
		/* The process is being killed; what it started on the GPU goes on. */
		access->abandoned = true;
		mutex_unlock(&mock_lock);
		return -EINTR;
	}
	if (!access->finished)
		access->is.ending = MOCK_TIMEOUT;
	*request = access->is;
	mock_end_access(access);
	mutex_unlock(&mock_lock);
	return 0;
}

bool mock_faults_pending(void)
{
	return (READ_ONCE(fault_registers[GET]) & POINTER_MASK) != (READ_ONCE(fault_registers[PUT]) & POINTER_MASK) ||
	       READ_ONCE(shadow_put) != READ_ONCE(shadow_get);
}

void mock_reset_replayable(void)
{
	unsigned long flags;

	spin_lock_irqsave(&buffer_lock, flags);
	fault_registers[GET] = 0;
	fault_registers[PUT] = 0;
	spin_unlock_irqrestore(&buffer_lock, flags);
}

NV_STATUS nvUvmInterfaceInitFaultInfo(uvmGpuDeviceHandle device, UvmGpuFaultInfo *info)
{
	memset(info, 0, sizeof(*info));
	info->replayable.pFaultBufferGet = &fault_registers[GET];
	info->replayable.pFaultBufferPut = &fault_registers[PUT];
	info->replayable.pPmcIntr = &fault_registers[INTERRUPT];
	info->replayable.pPmcIntrEnSet = &fault_registers[ENABLE_SET];
	info->replayable.pPmcIntrEnClear = &fault_registers[ENABLE_CLEAR];
	info->replayable.pPrefetchCtrl = &fault_registers[PREFETCH_CONTROL];
	info->replayable.pFaultBufferInfo = &fault_registers[INFO];
	info->replayable.replayableFaultMask = 1;
	info->replayable.bufferAddress = replayable;
	info->replayable.bufferSize = MOCK_FAULT_ENTRIES * sizeof(*replayable);
#ifdef MOCK_HAS_BUFFER_OWNER
	info->replayable.bUvmOwnsHwFaultBuffer = NV_TRUE;
#endif
	info->nonReplayable.bufferSize = SHADOW_ENTRIES * sizeof(*shadow);
	info->faultBufferHandle = 1;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceInitFaultInfo);

NV_STATUS nvUvmInterfaceDestroyFaultInfo(uvmGpuDeviceHandle device, UvmGpuFaultInfo *info)
{
	mock_reset_replayable();
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceDestroyFaultInfo);

NV_STATUS nvUvmInterfaceOwnPageFaultIntr(uvmGpuDeviceHandle device, NvBool own)
{
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceOwnPageFaultIntr);

NV_STATUS nvUvmInterfaceHasPendingNonReplayableFaults(UvmGpuFaultInfo *info, NvBool *pending)
{
	*pending = READ_ONCE(shadow_put) != READ_ONCE(shadow_get);
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceHasPendingNonReplayableFaults);

NV_STATUS nvUvmInterfaceGetNonReplayableFaults(UvmGpuFaultInfo *info, void *buffer, NvU32 *count)
{
	unsigned long flags;

	*count = 0;
	spin_lock_irqsave(&buffer_lock, flags);
	while (shadow_get != shadow_put)
		memcpy((u8 *)buffer + (*count)++ * sizeof(*shadow), shadow[shadow_get++ % SHADOW_ENTRIES],
		       sizeof(*shadow));
	spin_unlock_irqrestore(&buffer_lock, flags);
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceGetNonReplayableFaults);

NV_STATUS nvUvmInterfaceReportNonReplayableFault(uvmGpuDeviceHandle device, const void *fault_packet)
{
	const u32 *packet = fault_packet;
	u64 instance = (u64)packet[1] << 32 | (packet[0] & ~0xfffU);

	mutex_lock(&mock_lock);
	mock_counts.reports++;
	tear_down_instance(instance, "a non-replayable fault", (u64)packet[3] << 32 | packet[2]);
	mutex_unlock(&mock_lock);
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceReportNonReplayableFault);
