// SPDX-License-Identifier: MIT OR GPL-2.0
/* The parameters, which are set back after each case, and what stays fatal. */
#include <stdio.h>

#include "case.h"

#define WILD_VA 0x7fff12340000ULL
#define RANGE_VA 0x400000000ULL
#define POLICY_OFF 0
#define POLICY_ALWAYS 2

static void unshared_group(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_TSG_DEAD);
}

static void switched_off(struct scene *scene)
{
	set_parameter("uvm_fault_isolation", POLICY_OFF);	/* the stock module has none, and behaves so */
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_TSG_DEAD);
}

static void always(struct scene *scene)
{
	EXPECT(scene, set_parameter("uvm_fault_isolation", POLICY_ALWAYS), "no such parameter");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
}

static void incurable_types(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_WRITE, .va = WILD_VA,
							.fault_type = MOCK_FAULT_PDE_SIZE }), MOCK_TSG_DEAD);
}

static void bounded(struct scene *scene)
{
	EXPECT(scene, set_parameter("uvm_fault_isolation_max_sinks", 2), "no such parameter");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA + 2 * MIB, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA + 4 * MIB, 1), MOCK_PREEMPTED);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_PREEMPTED);
}

static void bounded_in_memory(struct scene *scene)
{
	struct mock_burst done;

	EXPECT(scene, set_parameter("uvm_fault_isolation_max_kib", 1024), "no such parameter");
	done = access_many(&scene->suspect, (struct mock_burst){ .kind = MOCK_WRITE, .va = 1ULL << 40, .seed = 5,
								 .span = 1ULL << 46, .count = 200, .in_flight = 8 });
	EXPECT(scene, done.endings[MOCK_DONE_SPARSE] > 8 && done.endings[MOCK_PREEMPTED] > 8 && !done.endings[MOCK_TSG_DEAD],
	       "%llu in a sink, %llu preempted, %llu dead", done.endings[MOCK_DONE_SPARSE],
	       done.endings[MOCK_PREEMPTED], done.endings[MOCK_TSG_DEAD]);
}

static void real_sink(struct scene *scene)
{
	struct client *suspect = &scene->suspect;
	struct mock_access fresh, read;

	EXPECT(scene, set_parameter("uvm_fault_isolation_real_sink", 1), "no such parameter");
	fresh = access_as(suspect, MOCK_READ, WILD_VA, 99);
	EXPECT_ACCESS(scene, fresh, MOCK_DONE);
	EXPECT(scene, fresh.value == 0, "a fresh sink reads 0x%llx", fresh.value);
	EXPECT_ACCESS(scene, access_as(suspect, MOCK_WRITE, WILD_VA + 8, 40), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(suspect, MOCK_ATOMIC, WILD_VA + 8, 2), MOCK_DONE);
	read = access_as(suspect, MOCK_READ, WILD_VA + 8, 0);
	EXPECT(scene, read.value == 42, "the sink reads %llu after 40 + 2", read.value);
	/* All sinks of a client are one page. */
	read = access_as(suspect, MOCK_READ, WILD_VA + 4 * MIB + 8, 0);
	EXPECT(scene, read.ending == MOCK_DONE && read.value == 42, "another sink reads %llu", read.value);
}

static void real_sink_over_read_only(struct scene *scene)
{
	struct mock_access read;

	map_new(&scene->suspect, RANGE_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT(scene, set_parameter("uvm_fault_isolation_real_sink", 1), "no such parameter");
	read = access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 5);
	EXPECT_ACCESS(scene, read, MOCK_DONE);
	read = access_as(&scene->suspect, MOCK_READ, RANGE_VA, 0);
	EXPECT(scene, read.value == 5, "the sink reads %llu", read.value);
}

static struct mock_access orphan_access(const struct client *client, unsigned int veid)
{
	return access_full(client, (struct mock_access){ .kind = MOCK_WRITE, .va = WILD_VA, .veid = veid, .orphan = 1,
							 .deadline_ms = 300 });
}

static void orphan_of_nobody(struct scene *scene)
{
	EXPECT_ACCESS(scene, orphan_access(&scene->suspect, 9), MOCK_TSG_DEAD);
}

/* A third client is poisoned and goes; its work goes on for a while. */
static struct mock_access leave_poisoned(struct scene *scene)
{
	struct client leaver = open_client(scene->tsg, 5);
	struct mock_access wild = access_as(&leaver, MOCK_WRITE, WILD_VA, 1);

	close_client(&leaver);
	return wild.ending == MOCK_DONE_SPARSE ? orphan_access(&scene->suspect, 5) : wild;
}

static void orphan_of_one_that_is_gone(struct scene *scene)
{
	EXPECT_ACCESS(scene, leave_poisoned(scene), MOCK_TSG_DEAD);
}

const struct test_case policy_cases[] = {
	{ "a group that nobody shares is cancelled", ALWAYS, unshared_group, .alone = true, .ends_tsg = true },
	{ "policy 0: cancelled as with the stock module", ALWAYS, switched_off, .ends_tsg = true },
	{ "policy 2: contained in a group that nobody shares", CONTAINED, always, .alone = true },
	{ "a fault that no page table entry cures is cancelled", ALWAYS, incurable_types, .ends_tsg = true },
	{ "beyond the greatest number of sinks that client ends, no other", CONTAINED, bounded },
	{ "beyond the memory for sinks that client ends, no other", CONTAINED, bounded_in_memory },
	{ "real sink: keeps what is written, for atomics", CONTAINED, real_sink },
	{ "real sink over read-only memory", CONTAINED, real_sink_over_read_only },
	{ "fault of a VEID that never was is cancelled", ALWAYS, orphan_of_nobody, .ends_tsg = true },
	{ "fault of a poisoned client that is gone is cancelled", ALWAYS, orphan_of_one_that_is_gone, .ends_tsg = true },
	{ 0 },
};
