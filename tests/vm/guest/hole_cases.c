// SPDX-License-Identifier: MIT OR GPL-2.0
/* Holes: inside ranges, beside small mappings, where a mapping was. How large a sink is, and how many there may be. */
#include <stdio.h>

#include "case.h"

#define RANGE_VA 0x400000000ULL
#define SMALL_VA 0x600201000ULL
#define SPARSE_PTE 8ULL
#define MANY 512
#define FIRST_BLOCK 0x10000000000ULL

static void hole_in_a_range(struct scene *scene)
{
	map_new(&scene->suspect, RANGE_VA, 8 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + 3 * MIB, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_READ, RANGE_VA + 5 * MIB, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_ATOMIC, RANGE_VA + 7 * MIB, 1), MOCK_DONE_SPARSE);
}

static void range_without_a_mapping(struct scene *scene)
{
	EXPECT(scene, try_range(&scene->suspect, RANGE_VA, 2 * MIB) == NV_OK, "no range");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + MIB, 1), MOCK_DONE_SPARSE);
}

static void beside_a_small_mapping(struct scene *scene)
{
	struct mock_translation sink;
	struct mock_access read;

	map_new(&scene->suspect, SMALL_VA, 4 * KIB, 4 * KIB, 4 * KIB, UvmGpuMappingTypeDefault);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, SMALL_VA, 21), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, SMALL_VA + 4 * KIB, 1), MOCK_DONE_SPARSE);
	sink = translate(&scene->suspect, SMALL_VA + 4 * KIB);
	EXPECT(scene, sink.page_size == 4 * KIB, "the sink's page has %llu bytes", sink.page_size);
	read = access_as(&scene->suspect, MOCK_READ, SMALL_VA, 0);
	EXPECT(scene, read.ending == MOCK_DONE && read.value == 21, "ended %u, read %llu", read.ending, read.value);
}

static void far_from_a_small_mapping(struct scene *scene)
{
	struct mock_access read;

	map_new(&scene->suspect, SMALL_VA, 4 * KIB, 4 * KIB, 4 * KIB, UvmGpuMappingTypeDefault);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, SMALL_VA, 22), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, SMALL_VA + MIB, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, translate(&scene->suspect, SMALL_VA + MIB).page_size == 64 * KIB, "no page of 64 KiB");
	read = access_as(&scene->suspect, MOCK_READ, SMALL_VA, 0);
	EXPECT(scene, read.ending == MOCK_DONE && read.value == 22, "ended %u, read %llu", read.ending, read.value);
}

static void between_small_mappings_in_a_range(struct scene *scene)
{
	unsigned int memory;
	struct mock_access read;

	map_new(&scene->suspect, RANGE_VA, 2 * MIB, 4 * KIB, 4 * KIB, UvmGpuMappingTypeDefault);
	memory = new_memory(&scene->suspect, 4 * KIB, 4 * KIB, false);
	EXPECT(scene, try_map(&scene->suspect, RANGE_VA + 8 * KIB, 4 * KIB, memory, UvmGpuMappingTypeDefault) == NV_OK,
	       "no second mapping");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + 8 * KIB, 33), MOCK_DONE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + 4 * KIB, 1), MOCK_DONE_SPARSE);
	read = access_as(&scene->suspect, MOCK_READ, RANGE_VA + 8 * KIB, 0);
	EXPECT(scene, read.ending == MOCK_DONE && read.value == 33, "ended %u, read %llu", read.ending, read.value);
}

static void null_page_is_a_sparse_page(struct scene *scene)
{
	struct mock_translation sink;

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, 0x1000, 1), MOCK_DONE_SPARSE);
	sink = translate(&scene->suspect, 0x1000);
	EXPECT(scene, sink.page_size == 64 * KIB && sink.pte == SPARSE_PTE, "PTE 0x%llx of %llu bytes", sink.pte,
	       sink.page_size);
}

static void one_fault_for_two_mebibytes(struct scene *scene)
{
	struct mock_access later;

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, 0x1000, 1), MOCK_DONE_SPARSE);
	later = access_as(&scene->suspect, MOCK_READ, 0x1f0000, 0);
	EXPECT_ACCESS(scene, later, MOCK_DONE_SPARSE);
	EXPECT(scene, later.faults == 0, "%u more faults in the same 2 MiB", later.faults);
}

static void many_sinks(struct scene *scene)
{
	unsigned int i;

	for (i = 0; i < MANY; i++)
		EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, FIRST_BLOCK + i * 2 * MIB, 1),
			      MOCK_DONE_SPARSE);
}

static void after_an_unmap(struct scene *scene)
{
	map_new(&scene->suspect, RANGE_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE);
	EXPECT(scene, try_unmap(&scene->suspect, RANGE_VA, 64 * KIB) == NV_OK, "no unmap");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE_SPARSE);
}

static void after_a_free(struct scene *scene)
{
	map_new(&scene->suspect, RANGE_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	EXPECT(scene, try_free(&scene->suspect, RANGE_VA, 2 * MIB) == NV_OK, "no free");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE_SPARSE);
}

static void overlay_outlives_its_mapping(struct scene *scene)
{
	map_new(&scene->suspect, RANGE_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, try_unmap(&scene->suspect, RANGE_VA, 64 * KIB) == NV_OK, "no unmap");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, try_free(&scene->suspect, RANGE_VA, 2 * MIB) == NV_OK, "no free");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE_SPARSE);
}

static void large_overlay_outlives_its_mapping(struct scene *scene)
{
	map_new(&scene->suspect, RANGE_VA, 4 * MIB, 2 * MIB, 2 * MIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, try_unmap(&scene->suspect, RANGE_VA, 2 * MIB) == NV_OK, "no unmap");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + MIB, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, translate(&scene->suspect, RANGE_VA).page_size == 64 * KIB, "no page of 64 KiB");
}

const struct test_case hole_cases[] = {
	{ "hole in an external range", CONTAINED, hole_in_a_range },
	{ "external range without a mapping", CONTAINED, range_without_a_mapping },
	{ "in the 64 KiB of a 4 KiB mapping", CONTAINED, beside_a_small_mapping },
	{ "in the 2 MiB of a 4 KiB mapping", CONTAINED, far_from_a_small_mapping },
	{ "between 4 KiB mappings of a range", CONTAINED, between_small_mappings_in_a_range },
	{ "the null page gets a sparse page of 64 KiB", CONTAINED, null_page_is_a_sparse_page },
	{ "one fault for 2 MiB of wild accesses", CONTAINED, one_fault_for_two_mebibytes },
	{ "512 sinks", CONTAINED, many_sinks },
	{ "where a mapping was", CONTAINED, after_an_unmap },
	{ "where a range was", CONTAINED, after_a_free },
	{ "the mapping under a sink is unmapped and freed", CONTAINED, overlay_outlives_its_mapping },
	{ "the 2 MiB page under a sink is unmapped", CONTAINED, large_overlay_outlives_its_mapping },
	{ 0 },
};
