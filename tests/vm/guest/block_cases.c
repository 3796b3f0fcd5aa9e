// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * What managed memory does not permit: its blocks have page tables of their own, in three shapes (none yet, one entry of
 * 2 MiB, a mix of smaller ones), and each has to become a sink.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>

#include "case.h"

#define MANAGED_VA 0x7c0000000000ULL
#define SIZE (8 * MIB)

static volatile uint64_t *managed(struct scene *scene, size_t size)
{
	volatile uint64_t *memory = try_managed(&scene->suspect, MANAGED_VA, size);

	if (memory == MAP_FAILED)
		die("get managed memory");
	memory[0] = 7;
	return memory;
}

static void make_read_only(volatile uint64_t *memory, size_t size)
{
	if (mprotect((void *)(uintptr_t)memory, size, PROT_READ))
		die("make memory read-only");
}

static struct mock_burst touch_all(const struct client *client, enum mock_access_kind kind, uint64_t size)
{
	return access_many(client, (struct mock_burst){ .kind = kind, .va = MANAGED_VA, .stride = 4 * KIB,
							.count = size / (4 * KIB), .in_flight = 64 });
}

static void never_touched(struct scene *scene)
{
	volatile uint64_t *memory = managed(scene, SIZE);

	make_read_only(memory, SIZE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, memory[0] == 7, "the CPU reads %llu", (unsigned long long)memory[0]);
}

static void atomic_on_it(struct scene *scene)
{
	make_read_only(managed(scene, SIZE), SIZE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, MANAGED_VA + 2 * MIB, 1), MOCK_DONE_SPARSE);
}

static void copy_engine_on_it(struct scene *scene)
{
	volatile uint64_t *memory = managed(scene, SIZE);

	make_read_only(memory, SIZE);
	EXPECT_ACCESS(scene, access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_WRITE, .va = MANAGED_VA,
										.value = 1, .copy_engine = 1 }),
		      MOCK_DONE_SPARSE);
	EXPECT(scene, memory[0] == 7, "the CPU reads %llu", (unsigned long long)memory[0]);
	EXPECT(scene, statistics(scene->tsg).reports == 0, "the fault was reported as fatal");
}

static void partly_touched(struct scene *scene)
{
	volatile uint64_t *memory = managed(scene, SIZE);
	unsigned int page;

	memory[256 * KIB / 8] = 3;
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, MANAGED_VA + 256 * KIB, 4), MOCK_DONE);
	make_read_only(memory, SIZE);
	for (page = 0; page < 8; page++)
		EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + page * 252 * KIB, 1),
			      MOCK_DONE_SPARSE);
	EXPECT(scene, memory[256 * KIB / 8] == 7, "the CPU reads %llu where the GPU added 4 to 3",
	       (unsigned long long)memory[256 * KIB / 8]);
}

static void wholly_touched(struct scene *scene)
{
	volatile uint64_t *memory = managed(scene, SIZE);
	struct mock_burst done = touch_all(&scene->suspect, MOCK_WRITE, 4 * MIB);
	uint64_t at;

	EXPECT(scene, done.endings[MOCK_DONE] == done.count, "%llu of %llu on memory", done.endings[MOCK_DONE], done.count);
	EXPECT(scene, translate(&scene->suspect, MANAGED_VA).page_size == 2 * MIB, "not mapped with a 2 MiB page");
	for (at = 0; at < 4 * MIB; at += 4 * KIB)
		memory[at / 8] = at;	/* so that the GPU has it no longer */
	make_read_only(memory, SIZE);
	EXPECT_BURST(scene, touch_all(&scene->suspect, MOCK_WRITE, SIZE));
	for (at = 0; at < 4 * MIB; at += 4 * KIB)
		EXPECT(scene, memory[at / 8] == at, "the CPU reads 0x%llx at 0x%llx", (unsigned long long)memory[at / 8],
		       (unsigned long long)at);
	EXPECT(scene, get_parameter("uvm_fault_isolation_sinks") <= (long)(SIZE / (2 * MIB)), "%ld sinks for %llu blocks",
	       get_parameter("uvm_fault_isolation_sinks"), SIZE / (2 * MIB));
}

static void small_block(struct scene *scene)
{
	volatile uint64_t *memory = managed(scene, 84 * KIB);

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, MANAGED_VA, 4), MOCK_DONE);
	memory[80 * KIB / 8] = 1;	/* the GPU was given all of it */
	make_read_only(memory, 84 * KIB);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + 80 * KIB, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + 84 * KIB, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, memory[0] == 11, "the CPU reads %llu", (unsigned long long)memory[0]);
}

/* The block can do with its entries what it likes: the CPU takes memory back and gives it again, it ends. */
static void undone(struct scene *scene)
{
	volatile uint64_t *memory = managed(scene, SIZE);
	unsigned int round;

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, MANAGED_VA + MIB, 4), MOCK_DONE);
	for (round = 0; round < 8; round++) {
		make_read_only(memory, SIZE);
		EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + round * 64 * KIB, 1),
			      MOCK_DONE_SPARSE);
		if (mprotect((void *)(uintptr_t)memory, SIZE, PROT_READ | PROT_WRITE))
			die("make memory writable");
		memory[round * 64 * KIB / 8] = round;
	}
	EXPECT(scene, munmap((void *)(uintptr_t)memory, SIZE) == 0, "no unmap");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + MIB, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA + 7 * MIB, 1), MOCK_DONE_SPARSE);
}

static void other_blocks_are_served(struct scene *scene)
{
	volatile uint64_t *memory = managed(scene, SIZE);

	make_read_only(memory, 2 * MIB);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, MANAGED_VA, 1), MOCK_DONE_SPARSE);
	memory[4 * MIB / 8] = 5;
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, MANAGED_VA + 4 * MIB, 6), MOCK_DONE);
	EXPECT(scene, memory[4 * MIB / 8] == 11, "managed memory reads %llu", (unsigned long long)memory[4 * MIB / 8]);
}

const struct test_case block_cases[] = {
	{ "store to read-only managed memory", CONTAINED, never_touched },
	{ "atomic on read-only managed memory", CONTAINED, atomic_on_it },
	{ "copy engine stores to read-only managed memory", CONTAINED, copy_engine_on_it },
	{ "stores to managed memory that the GPU used in part", CONTAINED, partly_touched },
	{ "stores to managed memory that the GPU used in 2 MiB pages", CONTAINED, wholly_touched },
	{ "stores to, and behind, a small piece of managed memory", CONTAINED, small_block },
	{ "a sink in managed memory that changes, and ends", CONTAINED, undone },
	{ "beside a sink managed memory is serviced as ever", CONTAINED, other_blocks_are_served },
	{ 0 },
};
