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

/* 8 MiB further no block is near: the memory is the client's, but it is refused, as all that is new. */
static void first_touch(struct scene *scene)
{
	volatile uint64_t *memory = system_memory(16 * MIB);

	poison(scene);
	if (scene->failed)
		return;
	EXPECT_ACCESS(scene, add(&scene->suspect, memory + MIB, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, memory[0] == 5, "system memory reads %llu", (unsigned long long)memory[0]);
}

static void first_touch_of_a_copy_engine(struct scene *scene)
{
	volatile uint64_t *memory = system_memory(16 * MIB);

	poison(scene);
	if (scene->failed)
		return;
	EXPECT_ACCESS(scene, access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_WRITE, .copy_engine = 1,
									.va = (uintptr_t)(memory + MIB) }),
		      MOCK_DONE_SPARSE);
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
	{ 0 },
};
