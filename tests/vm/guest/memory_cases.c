// SPDX-License-Identifier: MIT OR GPL-2.0
/* Accesses of every kind to addresses where nothing is, and what must stay as it was. */
#include <stdio.h>
#include <unistd.h>

#include "case.h"
#include "reports.h"

#define WILD_VA 0x7fff12340000ULL
#define OWN_VA 0x400000000ULL
#define MANAGED_VA 0x7c0000000000ULL

static void own_memory(struct scene *scene)
{
	struct client *suspect = &scene->suspect;
	struct mock_access read;

	map_new(suspect, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	EXPECT_ACCESS(scene, access_as(suspect, MOCK_WRITE, OWN_VA + 8, 7), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(suspect, MOCK_ATOMIC, OWN_VA + 8, 5), MOCK_DONE);
	read = access_as(suspect, MOCK_READ, OWN_VA + 8, 0);
	EXPECT(scene, read.value == 12, "read %llu where 12 was written", read.value);
}

static void read_only_memory_can_be_read(struct scene *scene)
{
	map_new(&scene->suspect, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, OWN_VA, 0), MOCK_DONE);
}

static void managed_memory_is_serviced(struct scene *scene)
{
	volatile uint64_t *memory = try_managed(&scene->suspect, MANAGED_VA, 2 * MIB);
	struct mock_access read;

	EXPECT(scene, memory == (void *)MANAGED_VA, "no managed memory");
	memory[0] = 11;
	read = access_as(&scene->suspect, MOCK_READ, MANAGED_VA, 0);
	EXPECT(scene, read.ending == MOCK_DONE && read.value == 11, "ended %u, read %llu", read.ending, read.value);
	EXPECT(scene, read.faults > 0, "no fault: the service path was not taken");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + 8, 12), MOCK_DONE);
	EXPECT(scene, memory[1] == 12, "the CPU reads %llu where the GPU wrote 12", (unsigned long long)memory[1]);
}

static void prefetch_of_nothing_is_dropped(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_PREFETCH, WILD_VA, 0), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_PREFETCH, 0, 0), MOCK_DONE);
}

static void null_store(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, 0x10, 1), MOCK_DONE_SPARSE);
}

static void null_load(struct scene *scene)
{
	struct mock_access read = access_as(&scene->suspect, MOCK_READ, 0, 99);

	EXPECT_ACCESS(scene, read, MOCK_DONE_SPARSE);
	EXPECT(scene, read.value == 0, "a load from the sink gave %llu", read.value);
}

static void null_atomic(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, 0x100, 1), MOCK_DONE_SPARSE);
}

static void wild_store(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
}

static void wild_load(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, WILD_VA, 1), MOCK_DONE_SPARSE);
}

static void wild_atomic(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, WILD_VA, 1), MOCK_DONE_SPARSE);
}

static struct mock_access by_copy_engine(const struct client *client, enum mock_access_kind kind, uint64_t va)
{
	return access_full(client, (struct mock_access){ .kind = kind, .va = va, .value = 1, .copy_engine = 1 });
}

static void copy_engine_store(struct scene *scene)
{
	struct mock_access done = by_copy_engine(&scene->suspect, MOCK_WRITE, WILD_VA);

	EXPECT_ACCESS(scene, done, MOCK_DONE_SPARSE);
	EXPECT(scene, done.faults == 1, "%u faults", done.faults);
	EXPECT(scene, statistics(scene->tsg).reports == 0, "the fault was reported as fatal");
}

static void copy_engine_load(struct scene *scene)
{
	EXPECT_ACCESS(scene, by_copy_engine(&scene->suspect, MOCK_READ, 0), MOCK_DONE_SPARSE);
}

static void copy_engine_store_to_read_only(struct scene *scene)
{
	map_new(&scene->suspect, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, by_copy_engine(&scene->suspect, MOCK_WRITE, OWN_VA), MOCK_DONE_SPARSE);
}

/* A PBDMA reads a semaphore that it waits for: 0, from the sink; it would wait on for any other value. */
static void semaphore_acquire(struct scene *scene)
{
	int events = listen_to_uevents();
	struct mock_access done;
	char text[2048];

	done = access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_READ, .va = WILD_VA, .value = 7,
								  .copy_engine = 1, .host = 1 });
	EXPECT_ACCESS(scene, done, MOCK_DONE_SPARSE);
	EXPECT(scene, done.value == 0, "it reads %llu", done.value);
	next_report(events, text, sizeof(text));
	close(events);
	EXPECT(scene, strstr(text, " ENGINE=PBDMA "), "the uevent does not name the engine: %s", text);
}

static void store_to_read_only(struct scene *scene)
{
	map_new(&scene->suspect, OWN_VA, 2 * MIB, 128 * KIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, OWN_VA + 64 * KIB, 9), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, OWN_VA, 0), MOCK_DONE);
}

static void atomic_to_read_only(struct scene *scene)
{
	map_new(&scene->suspect, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, OWN_VA, 1), MOCK_DONE_SPARSE);
}

static void atomic_where_only_writes_are_allowed(struct scene *scene)
{
	map_new(&scene->suspect, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeReadWrite);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, OWN_VA, 1), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, OWN_VA, 1), MOCK_DONE_SPARSE);
}

static void store_to_read_only_large_page(struct scene *scene)
{
	map_new(&scene->suspect, OWN_VA, 4 * MIB, 2 * MIB, 2 * MIB, UvmGpuMappingTypeReadOnly);
	EXPECT(scene, translate(&scene->suspect, OWN_VA).page_size == 2 * MIB, "not mapped with a 2 MiB page");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, OWN_VA + MIB, 9), MOCK_DONE_SPARSE);
}

static void store_to_read_only_small_page(struct scene *scene)
{
	map_new(&scene->suspect, OWN_VA, 2 * MIB, 8 * KIB, 4 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, OWN_VA + 4 * KIB, 9), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, OWN_VA, 0), MOCK_DONE);
}

static void neighbouring_mapping_keeps_its_data(struct scene *scene)
{
	struct mock_access read;

	map_new(&scene->suspect, OWN_VA, 8 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, OWN_VA, 77), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, OWN_VA + 64 * KIB, 1), MOCK_DONE_SPARSE);
	read = access_as(&scene->suspect, MOCK_READ, OWN_VA, 0);
	EXPECT(scene, read.ending == MOCK_DONE && read.value == 77, "ended %u, read %llu", read.ending, read.value);
}

static void managed_memory_after_containment(struct scene *scene)
{
	volatile uint64_t *memory = try_managed(&scene->suspect, MANAGED_VA, 4 * MIB);

	EXPECT(scene, memory == (void *)MANAGED_VA, "no managed memory");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	memory[512] = 5;
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, MANAGED_VA + 4 * KIB, 6), MOCK_DONE);
	EXPECT(scene, memory[512] == 11, "managed memory reads %llu", (unsigned long long)memory[512]);
}

static void fault_beside_managed_memory(struct scene *scene)
{
	volatile uint64_t *memory = try_managed(&scene->suspect, MANAGED_VA, 256 * KIB);

	EXPECT(scene, memory == (void *)MANAGED_VA, "no managed memory");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA, 3), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + MIB, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, memory[0] == 3, "managed memory reads %llu", (unsigned long long)memory[0]);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, MANAGED_VA, 4), MOCK_DONE);
	EXPECT(scene, memory[0] == 7, "managed memory reads %llu", (unsigned long long)memory[0]);
}

const struct test_case memory_cases[] = {
	{ "own memory can be read and written", ALWAYS, own_memory },
	{ "own read-only memory can be read", ALWAYS, read_only_memory_can_be_read },
	{ "faults on managed memory are serviced", ALWAYS, managed_memory_is_serviced },
	{ "a prefetch of nothing is dropped", ALWAYS, prefetch_of_nothing_is_dropped },
	{ "store to the null page", CONTAINED, null_store },
	{ "load from the null page reads 0", CONTAINED, null_load },
	{ "atomic on the null page", CONTAINED, null_atomic },
	{ "wild store", CONTAINED, wild_store },
	{ "wild load", CONTAINED, wild_load },
	{ "wild atomic", CONTAINED, wild_atomic },
	{ "copy engine stores to nowhere", CONTAINED, copy_engine_store },
	{ "copy engine loads from nowhere", CONTAINED, copy_engine_load },
	{ "copy engine stores to read-only memory", CONTAINED, copy_engine_store_to_read_only },
	{ "a PBDMA acquires a semaphore that is nowhere", CONTAINED, semaphore_acquire },
	{ "store to read-only memory", CONTAINED, store_to_read_only },
	{ "atomic on read-only memory", CONTAINED, atomic_to_read_only },
	{ "atomic where only reads and writes are allowed", CONTAINED, atomic_where_only_writes_are_allowed },
	{ "store to a read-only 2 MiB page", CONTAINED, store_to_read_only_large_page },
	{ "store to a read-only 4 KiB page", CONTAINED, store_to_read_only_small_page },
	{ "the mapping beside the fault keeps its data", CONTAINED, neighbouring_mapping_keeps_its_data },
	{ "managed memory is serviced after a contained fault", CONTAINED, managed_memory_after_containment },
	{ "fault beside managed memory, in the same 2 MiB", CONTAINED, fault_beside_managed_memory },
	{ 0 },
};
