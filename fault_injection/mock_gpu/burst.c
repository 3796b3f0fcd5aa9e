// SPDX-License-Identifier: MIT OR GPL-2.0
/* A kernel of a client that makes many accesses, some of them at once: a loop past an array's end, pointers at random. */
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "mock_gpu.h"

/* Without the lock being let go of. */
#define AT_ONCE 256

struct flight {
	struct mock_stalled_access *access;
	ktime_t since;
};

static u64 next_random(u64 *state)	/* xorshift64*, of S. Vigna */
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

static u64 address_of(struct mock_burst *burst, u64 number)
{
	u64 offset = number * burst->stride;

	if (burst->seed)
		div64_u64_rem(next_random(&burst->seed), burst->span, &offset);
	return burst->va + (offset & ~7ULL);
}

static void count(struct mock_burst *burst, const struct flight *flight)
{
	const struct mock_access *done = &flight->access->is;
	u64 took = ktime_to_ms(ktime_sub(ktime_get(), flight->since));

	burst->done++;
	burst->faults += done->faults;
	if (done->ending < ARRAY_SIZE(burst->endings))
		burst->endings[done->ending]++;
	burst->slowest_ms = max(burst->slowest_ms, took);
}

static struct mock_stalled_access *start(struct mock_burst *burst, struct mock_user_channel *channel, u64 number)
{
	struct mock_stalled_access *access = kzalloc(sizeof(*access), GFP_KERNEL);

	if (!access)
		return NULL;
	access->channel = channel;
	access->is = (struct mock_access) {
		.tsg = burst->tsg, .veid = burst->veid, .kind = burst->kind, .va = address_of(burst, number),
	};
	mock_start_access(access);
	return access;
}

/* Starts accesses until so many are stalled; those that are not are counted at once. */
static long fill(struct mock_burst *burst, struct flight *flights, u32 *flying, u64 *number)
{
	struct mock_user_channel *channel;
	u64 end = *number + AT_ONCE;
	long result = 0;

	mutex_lock(&mock_lock);
	channel = mock_find_channel(burst->tsg, burst->veid);
	if (!channel)
		result = -ENODEV;
	while (channel && *flying < burst->in_flight && *number < min(burst->count, end)) {
		struct flight flight = { .since = ktime_get() };

		flight.access = start(burst, channel, (*number)++);
		if (!flight.access) {
			result = -ENOMEM;
			break;
		}
		if (!flight.access->finished) {
			flights[(*flying)++] = flight;
			continue;
		}
		count(burst, &flight);
		mock_end_access(flight.access);
	}
	mutex_unlock(&mock_lock);
	return result;
}

/* Those that are finished make room for the next; all of them if it is over. */
static void land(struct mock_burst *burst, struct flight *flights, u32 *flying, bool over)
{
	u32 i = 0;

	mutex_lock(&mock_lock);
	while (i < *flying) {
		struct mock_stalled_access *access = flights[i].access;

		if (!access->finished && !over) {
			i++;
			continue;
		}
		if (!access->finished)
			access->is.ending = MOCK_TIMEOUT;
		count(burst, &flights[i]);
		mock_end_access(access);
		flights[i] = flights[--*flying];
	}
	mutex_unlock(&mock_lock);
}

static bool any_finished(const struct flight *flights, u32 flying)
{
	u32 i;

	for (i = 0; i < flying; i++)
		if (READ_ONCE(flights[i].access->finished))
			return true;
	return !flying;
}

long mock_run_burst(struct mock_burst *burst)
{
	unsigned long end = jiffies + msecs_to_jiffies(burst->deadline_ms);
	struct flight *flights = kcalloc(burst->in_flight, sizeof(*flights), GFP_KERNEL);
	u64 number = 0;
	u32 flying = 0;
	long result;

	if (!flights)
		return -ENOMEM;
	do {
		result = fill(burst, flights, &flying, &number);
		if (result)
			break;
		if (flying == burst->in_flight || number == burst->count)
			result = mock_wait_killable(any_finished(flights, flying), end);
		land(burst, flights, &flying, false);
		cond_resched();
	} while (result >= 0 && (number < burst->count || flying) && time_before(jiffies, end));
	/* As if its channel were preempted: nothing of it is left. */
	land(burst, flights, &flying, true);
	kfree(flights);
	return result < 0 ? result : 0;
}
