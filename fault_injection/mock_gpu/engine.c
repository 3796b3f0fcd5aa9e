// SPDX-License-Identifier: MIT OR GPL-2.0
/* The host and copy engine: a kernel thread that runs the pushbuffers of UVM's own channels, method by method. */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/minmax.h>

#include "mock_gpu.h"

#define METHOD(channel, offset) ((channel)->method[(offset) / 4])

/* Host methods of class C46F. */
#define MEM_OP_A 0x28
#define MEM_OP_B 0x2c
#define MEM_OP_C 0x30
#define MEM_OP_D 0x34
#define SEM_ADDR_LO 0x5c
#define SEM_ADDR_HI 0x60
#define SEM_PAYLOAD 0x64
#define SEM_EXECUTE 0x6c
#define CLEAR_FAULTED 0x84
/* Methods of the software object, class C076, which RM runs. */
#define FAULT_CANCEL_A 0x104
#define FAULT_CANCEL_B 0x108
#define FAULT_CANCEL_C 0x10c
/* Methods of the copy engine, class C5B5. */
#define SEMAPHORE_A 0x240
#define SEMAPHORE_B 0x244
#define SEMAPHORE_VALUE 0x248
#define SOURCE_TARGET 0x260
#define DESTINATION_TARGET 0x264
#define LAUNCH_DMA 0x300
#define OFFSET_IN_UPPER 0x400
#define OFFSET_IN_LOWER 0x404
#define OFFSET_OUT_UPPER 0x408
#define OFFSET_OUT_LOWER 0x40c
#define LINE_LENGTH 0x418
#define REMAP_CONST_A 0x700
#define REMAP_CONST_B 0x704
#define REMAP_COMPONENTS 0x708

#define UPPER_MASK 0x1ffffULL
/* Between two looks for work. */
#define SHORTEST_US 40U
#define LONGEST_US 640U

LIST_HEAD(mock_internal_channels);
static struct task_struct *engine;

/* What RC does to a channel of UVM: its notifier is set and it stands still. */
static void stop_channel(struct mock_internal_channel *channel, const char *why, u64 va)
{
	pr_err("mock GPU: %s at 0x%llx on a channel of UVM\n", why, va);
	channel->notifier->status = 0xffff;
	channel->stopped = true;
}

static u8 *dma_pointer(const struct mock_internal_channel *channel, bool destination, u64 address, u64 *left)
{
	u32 launch = METHOD(channel, LAUNCH_DMA);
	bool physical = launch & (destination ? BIT(13) : BIT(12));
	u32 target = METHOD(channel, destination ? DESTINATION_TARGET : SOURCE_TARGET) & 3;

	if (!physical)
		return mock_pointer(channel->vas, address, left);
	*left = 4096 - (address & 4095);
	return mock_physical(target == 0, address, 1);
}

static bool dma_fill(struct mock_internal_channel *channel, u64 out, u64 count)
{
	u32 components = METHOD(channel, REMAP_COMPONENTS);
	u32 size = ((components >> 16) & 3) + 1, number = ((components >> 24) & 3) + 1, element = size * number;
	u64 pattern = METHOD(channel, REMAP_CONST_B), done = 0, total = count * element, left, at, segment;

	if (number == 2)
		pattern = METHOD(channel, REMAP_CONST_A) | pattern << 32;
	while (done < total) {
		u8 *to = dma_pointer(channel, true, out + done, &left);

		if (!to) {
			stop_channel(channel, "memset to unmapped memory", out + done);
			return false;
		}
		segment = min(left, total - done);
		for (at = 0; at + element <= segment; at += element)
			memcpy(to + at, &pattern, element);
		done += segment;
	}
	return true;
}

static bool dma_copy(struct mock_internal_channel *channel, u64 out, u64 in, u64 count)
{
	u64 done = 0, to_left, from_left, segment;

	while (done < count) {
		u8 *to = dma_pointer(channel, true, out + done, &to_left);
		u8 *from = dma_pointer(channel, false, in + done, &from_left);

		if (!to || !from) {
			stop_channel(channel, "copy of unmapped memory", to ? in + done : out + done);
			return false;
		}
		segment = min3(to_left, from_left, count - done);
		memcpy(to, from, segment);
		done += segment;
	}
	return true;
}

static void launch_dma(struct mock_internal_channel *channel)
{
	u32 launch = METHOD(channel, LAUNCH_DMA), semaphore = (launch >> 3) & 3, payload, *word;
	u64 out = (METHOD(channel, OFFSET_OUT_UPPER) & UPPER_MASK) << 32 | METHOD(channel, OFFSET_OUT_LOWER);
	u64 in = (METHOD(channel, OFFSET_IN_UPPER) & UPPER_MASK) << 32 | METHOD(channel, OFFSET_IN_LOWER);
	u64 va, left, count = METHOD(channel, LINE_LENGTH);
	bool done = true;

	if (launch & 3)
		done = launch & BIT(10) ? dma_fill(channel, out, count) : dma_copy(channel, out, in, count);
	if (!done || !semaphore)
		return;
	va = (METHOD(channel, SEMAPHORE_A) & UPPER_MASK) << 32 | METHOD(channel, SEMAPHORE_B);
	payload = METHOD(channel, SEMAPHORE_VALUE);
	word = mock_pointer(channel->vas, va, &left);
	if (!word) {
		stop_channel(channel, "semaphore in unmapped memory", va);
		return;
	}
	smp_wmb();	/* the data first */
	if (launch & BIT(19)) {		/* reduction: increment, and wrap at the payload */
		WRITE_ONCE(*word, *word >= payload ? 0 : *word + 1);
		return;
	}
	if (semaphore == 2)
		*(u64 *)(word + 2) = ktime_get_ns();
	WRITE_ONCE(*word, payload);
}

static void memory_operation(const struct mock_internal_channel *channel)
{
	u32 a = METHOD(channel, MEM_OP_A), c = METHOD(channel, MEM_OP_C), d = METHOD(channel, MEM_OP_D);
	u64 va = ((u64)METHOD(channel, MEM_OP_B) << 20 | a >> 12) << 12;
	u64 directory = ((u64)(d & 0x7ffffff) << 20 | c >> 12) << 12;
	u32 operation = d >> 27;

	/* Only invalidations replay and cancel; the model is coherent and has no TLB to invalidate. */
	if (operation != 0x9 && operation != 0xa)
		return;
	switch ((c >> 2) & 7) {
	case 1:
	case 2:
		mock_replay();
		break;
	case 5:
		mock_cancel_va(directory, va, a & 0x7f);
		break;
	}
}

static void cancel_instance(const struct mock_internal_channel *channel)
{
	mock_cancel_instance((u64)METHOD(channel, FAULT_CANCEL_B) << 32 |
			     (METHOD(channel, FAULT_CANCEL_A) & ~0xfffU));
}

/* False: blocked, to be tried again. */
static bool host_semaphore(struct mock_internal_channel *channel, u32 execute)
{
	u64 va = (u64)(METHOD(channel, SEM_ADDR_HI) & 0xff) << 32 | (METHOD(channel, SEM_ADDR_LO) & ~3U), left;
	u32 payload = METHOD(channel, SEM_PAYLOAD), *word = mock_pointer(channel->vas, va, &left);

	if (!word) {
		stop_channel(channel, "host semaphore in unmapped memory", va);
		return true;
	}
	switch (execute & 7) {
	case 0:
		return READ_ONCE(*word) == payload;
	case 1:
		if (execute & BIT(25))
			*(u64 *)(word + 2) = ktime_get_ns();
		smp_wmb();	/* what was done before first */
		WRITE_ONCE(*word, payload);
		return true;
	case 2:
		return READ_ONCE(*word) >= payload;
	case 3:
		return (s32)(READ_ONCE(*word) - payload) >= 0;
	}
	return true;
}

static bool do_method(struct mock_internal_channel *channel, u32 address, u32 data)
{
	if (address >= sizeof(channel->method))
		return true;
	METHOD(channel, address) = data;
	switch (address) {
	case SEM_EXECUTE:
		return host_semaphore(channel, data);
	case CLEAR_FAULTED:
		mock_clear_faulted(data & 0x7fffffff);
		return true;
	case FAULT_CANCEL_C:
		cancel_instance(channel);
		return true;
	case MEM_OP_D:
		memory_operation(channel);
		return true;
	case LAUNCH_DMA:
		launch_dma(channel);
		return true;
	}
	return true;
}

/* One header of the pushbuffer with what belongs to it; false if it blocks. A blocked header is run again as a whole:
 * UVM gives each semaphore a header of its own.
 */
static bool run_header(struct mock_internal_channel *channel)
{
	u32 *words = mock_rm_pointer(channel->position), header, count, address, opcode, i, size;

	if (!words) {
		stop_channel(channel, "pushbuffer in unmapped memory", channel->position);
		return false;
	}
	header = words[0];
	opcode = header >> 29;
	count = (header >> 16) & 0x1fff;
	address = (header & 0xfff) << 2;
	if (opcode == 4) {	/* immediate: the count is the data */
		do_method(channel, address, count);
		size = 4;
	} else {
		for (i = 0; i < count; i++) {
			u32 to = opcode == 1 ? address + 4 * i : opcode == 5 && i ? address + 4 : address;

			if (!do_method(channel, to, words[1 + i]))
				return false;
		}
		size = 4 * (count + 1);
	}
	channel->position += size;
	channel->left -= min(size, channel->left);
	return !channel->stopped;
}

static bool run_channel(struct mock_internal_channel *channel)
{
	bool worked = false;

	while (!channel->stopped) {
		if (!channel->left) {
			u64 entry;

			if (channel->get == READ_ONCE(channel->registers[1]))
				return worked;
			smp_rmb();	/* the entry after GP_PUT */
			entry = channel->fifo[channel->get];
			channel->position = (entry >> 32 & 0xff) << 32 | (entry & 0xfffffffcULL);
			channel->left = (entry >> 42 & 0x1fffff) * 4;
		}
		while (channel->left) {
			if (!run_header(channel))
				return worked;
			worked = true;
		}
		channel->get = (channel->get + 1) % channel->entries;
		WRITE_ONCE(channel->registers[0], channel->get);
	}
	return worked;
}

/*
 * No doorbell tells the thread of new work: it looks. The longer there was none, the more seldom, up to LONGEST_US: in an
 * emulated machine each look costs the host some 70 us, and most of the time there is nothing.
 */
static int run(void *unused)
{
	unsigned int pause_us = SHORTEST_US;

	while (!kthread_should_stop()) {
		struct mock_internal_channel *each;
		bool worked = false;

		mutex_lock(&mock_lock);
		list_for_each_entry(each, &mock_internal_channels, node)
			worked |= run_channel(each);
		mutex_unlock(&mock_lock);
		if (mock_faults_pending())
			worked |= mock_raise_interrupt();
		if (worked) {
			pause_us = SHORTEST_US;
		} else {
			usleep_range(pause_us, 2 * pause_us);
			pause_us = min(2 * pause_us, LONGEST_US);
		}
	}
	return 0;
}

int mock_engine_start(void)
{
	engine = kthread_run(run, NULL, "mock-gpu");
	return PTR_ERR_OR_ZERO(engine);
}

void mock_engine_stop(void)
{
	kthread_stop(engine);
}
