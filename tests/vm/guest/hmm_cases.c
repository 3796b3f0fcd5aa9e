// SPDX-License-Identifier: MIT OR GPL-2.0
/* System memory that the GPU reaches without asking (HMM), before a fault and after one. */
#include <stdio.h>
#include <sys/mman.h>

#include "case.h"

#define WILD_VA 0x12345000ULL

static volatile uint64_t *system_memory(size_t size)
{
	volatile uint64_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("map memory");
	memory[0] = 5;
	return memory;
}

static struct mock_access add(const struct client *client, volatile uint64_t *memory, uint64_t value)
{
	return access_as(client, MOCK_ATOMIC, (uintptr_t)memory, value);
}

static void poison(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
}

static void serviced(struct scene *scene)
{
	volatile uint64_t *memory = system_memory(4 * MIB);

	EXPECT_ACCESS(scene, add(&scene->suspect, memory, 6), MOCK_DONE);
	EXPECT(scene, memory[0] == 11, "system memory reads %llu", (unsigned long long)memory[0]);
}

static void touched_before(struct scene *scene)
{
	volatile uint64_t *memory = system_memory(4 * MIB);

	EXPECT_ACCESS(scene, add(&scene->suspect, memory, 6), MOCK_DONE);
	poison(scene);
	EXPECT(scene, scene->failed || memory[0] == 11, "system memory reads %llu", (unsigned long long)memory[0]);
	if (scene->failed)
		return;
	EXPECT_ACCESS(scene, add(&scene->suspect, memory, 7), MOCK_DONE);
	EXPECT(scene, memory[0] == 18, "system memory reads %llu", (unsigned long long)memory[0]);
}

/* 8 MiB further no block is near, nor a sink: it is served as ever. */
static void first_touch(struct scene *scene)
{
	volatile uint64_t *memory = system_memory(16 * MIB);

	poison(scene);
	if (scene->failed)
		return;
	EXPECT_ACCESS(scene, add(&scene->suspect, memory + MIB, 1), MOCK_DONE);
	EXPECT(scene, memory[MIB] == 1, "system memory reads %llu", (unsigned long long)memory[MIB]);
	EXPECT(scene, get_parameter("uvm_fault_isolation_sinks") == 1, "%ld sinks",
	       get_parameter("uvm_fault_isolation_sinks"));
}

static void first_touch_of_a_copy_engine(struct scene *scene)
{
	volatile uint64_t *memory = system_memory(16 * MIB);

	poison(scene);
	if (scene->failed)
		return;
	EXPECT_ACCESS(scene, access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_WRITE, .copy_engine = 1,
									.va = (uintptr_t)(memory + MIB) }),
		      MOCK_DONE);
}

/* Room of 8 MiB, aligned to 2 MiB, of which nothing is mapped but what is given back from here on. */
static uint64_t room(void)
{
	uint64_t base = (uintptr_t)mmap(NULL, 8 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (base == (uint64_t)(uintptr_t)MAP_FAILED)
		die("find room");
	munmap((void *)(uintptr_t)base, 8 * MIB);
	return (base + 2 * MIB - 1) & ~(2 * MIB - 1);
}

static volatile uint64_t *memory_at(uint64_t va, size_t size)
{
	void *memory = mmap((void *)(uintptr_t)va, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	if (memory == MAP_FAILED)
		die("map memory");
	return memory;
}

/* Past the end of what was allocated, in the block of 2 MiB that the GPU has used. */
static void overrun(struct scene *scene)
{
	uint64_t base = room();
	volatile uint64_t *memory = memory_at(base, MIB);

	memory[0] = 5;
	EXPECT_ACCESS(scene, add(&scene->suspect, memory, 6), MOCK_DONE);
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = base + MIB, .stride = 4 * KIB, .count = 512, .in_flight = 32 }));
	EXPECT(scene, memory[0] == 11, "system memory reads %llu", (unsigned long long)memory[0]);
}

static void after_unmap(struct scene *scene)
{
	uint64_t base = room();
	volatile uint64_t *memory = memory_at(base, 4 * MIB);

	EXPECT_ACCESS(scene, add(&scene->suspect, memory, 6), MOCK_DONE);
	munmap((void *)(uintptr_t)base, 4 * MIB);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, base, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, base + 3 * MIB, 1), MOCK_DONE_SPARSE);
}

static void read_only(struct scene *scene)
{
	uint64_t base = room();
	volatile uint64_t *memory = memory_at(base, 2 * MIB);

	memory[0] = 5;
	if (mprotect((void *)(uintptr_t)base, 2 * MIB, PROT_READ))
		die("make memory read-only");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, base + MIB, 0), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, base, 9), MOCK_DONE_SPARSE);
	EXPECT(scene, memory[0] == 5, "the CPU reads %llu", (unsigned long long)memory[0]);
}

static void copy_engine_on_read_only(struct scene *scene)
{
	uint64_t base = room();

	memory_at(base, 2 * MIB)[0] = 5;
	if (mprotect((void *)(uintptr_t)base, 2 * MIB, PROT_READ))
		die("make memory read-only");
	EXPECT_ACCESS(scene, access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_WRITE, .copy_engine = 1,
										.va = base }), MOCK_DONE_SPARSE);
}

static void where_memory_was(struct scene *scene)
{
	volatile uint64_t *memory = system_memory(16 * MIB);

	munmap((void *)memory, 16 * MIB);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, (uintptr_t)(memory + MIB), 1), MOCK_DONE_SPARSE);
}

const struct test_case hmm_cases[] = {
	{ "HMM: system memory is serviced", ALWAYS, serviced, .needs_hmm = true },
	{ "HMM: memory touched before the fault is serviced after it", CONTAINED, touched_before, .needs_hmm = true },
	{ "HMM: poisoned, an SM's first touch of system memory", CONTAINED, first_touch, .needs_hmm = true },
	{ "HMM: poisoned, a copy engine's first touch of system memory", CONTAINED, first_touch_of_a_copy_engine,
	  .needs_hmm = true },
	{ "HMM: where system memory was", CONTAINED, where_memory_was, .needs_hmm = true },
	{ "HMM: overrun past memory that the GPU used", CONTAINED, overrun, .needs_hmm = true },
	{ "HMM: use of memory that the GPU used, after munmap", CONTAINED, after_unmap, .needs_hmm = true },
	{ "HMM: store to a read-only page", CONTAINED, read_only, .needs_hmm = true },
	{ "HMM: copy engine stores to a read-only page", CONTAINED, copy_engine_on_read_only, .needs_hmm = true },
	{ 0 },
};
