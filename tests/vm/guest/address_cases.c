// SPDX-License-Identifier: MIT OR GPL-2.0
/* Addresses that only the GPU can form: where the CPU's addresses end, and the last ones there are. */
#include <stdio.h>

#include "case.h"

#define CPU_END (1ULL << 47)	/* of a process, on x86 with four levels */
#define NEGATIVE 0xffff800000000000ULL
#define GPU_HIGH (1ULL << 48)

static void store(struct scene *scene, uint64_t va)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, va, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, va, 1), MOCK_DONE_SPARSE);
}

static void first_behind_the_cpu(struct scene *scene)
{
	store(scene, CPU_END);
}

static void last_of_the_cpu(struct scene *scene)
{
	store(scene, CPU_END - 8);
}

static void far_behind_the_cpu(struct scene *scene)
{
	store(scene, 0xdeadbeef1230ULL);
}

static void beyond_48_bits(struct scene *scene)
{
	store(scene, GPU_HIGH + 0x12345678);
}

static void first_negative(struct scene *scene)
{
	store(scene, NEGATIVE);
}

static void minus_eight(struct scene *scene)
{
	store(scene, ~7ULL);
}

static void copy_engine_behind_the_cpu(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_WRITE, .va = CPU_END + 64,
										.copy_engine = 1 }), MOCK_DONE_SPARSE);
}

static void across_the_end(struct scene *scene)
{
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = CPU_END - 4 * MIB, .stride = 4 * KIB, .count = 2048, .in_flight = 32 }));
}

static void below_zero(struct scene *scene)
{
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_READ, .va = MIB, .stride = -(4 * KIB), .count = 1024, .in_flight = 32 }));
}

static void wild_everywhere_behind_the_cpu(struct scene *scene)
{
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = CPU_END, .seed = 3, .span = 1ULL << 40, .count = 200, .in_flight = 16 }));
}

const struct test_case address_cases[] = {
	{ "the first address that the CPU has not", CONTAINED, first_behind_the_cpu },
	{ "the last address that the CPU has", CONTAINED, last_of_the_cpu },
	{ "an address of 48 bits", CONTAINED, far_behind_the_cpu },
	{ "an address of 49 bits", CONTAINED, beyond_48_bits },
	{ "the first negative address", CONTAINED, first_negative },
	{ "a null pointer less 8", CONTAINED, minus_eight },
	{ "copy engine stores where the CPU has no address", CONTAINED, copy_engine_behind_the_cpu },
	{ "overrun across the end of the CPU's addresses", CONTAINED, across_the_end },
	{ "a loop that counts below zero", CONTAINED, below_zero },
	{ "random pointers where the CPU has no address", CONTAINED, wild_everywhere_behind_the_cpu },
	{ 0 },
};
