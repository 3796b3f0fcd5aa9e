// SPDX-License-Identifier: MIT OR GPL-2.0
/* What a poisoned VA space refuses, and what it still allows. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "case.h"

#define RANGE_VA 0x400000000ULL
#define NEW_VA 0x700000000ULL
#define MANAGED_VA 0x7d0000000000ULL

static void poison(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, 0x1000, 1), MOCK_DONE_SPARSE);
}

static void range(struct scene *scene)
{
	poison(scene);
	EXPECT(scene, scene->failed || try_range(&scene->suspect, NEW_VA, 2 * MIB) != NV_OK, "a new range was made");
}

static void mapping(struct scene *scene)
{
	unsigned int memory = new_memory(&scene->suspect, 64 * KIB, 64 * KIB, false);

	map_new(&scene->suspect, RANGE_VA, 8 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	poison(scene);
	EXPECT(scene, scene->failed || try_map(&scene->suspect, RANGE_VA + 4 * MIB, 64 * KIB, memory,
					       UvmGpuMappingTypeDefault) != NV_OK,
	       "memory was mapped into an old range");
}

static void sparse(struct scene *scene)
{
	EXPECT(scene, try_range(&scene->suspect, RANGE_VA, 8 * MIB) == NV_OK, "no range");
	poison(scene);
	EXPECT(scene, scene->failed || try_sparse(&scene->suspect, RANGE_VA, 2 * MIB) != NV_OK,
	       "a sparse mapping was made");
}

static void managed(struct scene *scene)
{
	poison(scene);
	EXPECT(scene, scene->failed || try_managed(&scene->suspect, MANAGED_VA, 2 * MIB) == MAP_FAILED,
	       "managed memory was made");
}

static void channel(struct scene *scene)
{
	poison(scene);
	EXPECT(scene, scene->failed || try_channel(&scene->suspect, 77) != NV_OK, "a channel was registered");
}

static void semaphore_pool(struct scene *scene)
{
	poison(scene);
	EXPECT(scene, scene->failed || try_semaphore_pool(&scene->suspect, NEW_VA, 64 * KIB) != NV_OK,
	       "a semaphore pool was made");
}

static void parallelism_region(struct scene *scene)
{
	poison(scene);
	EXPECT(scene, scene->failed || try_parallelism_region(&scene->suspect, NEW_VA, 2 * MIB) != NV_OK,
	       "a region was made");
}

static void poisoned_by_a_copy_engine(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_full(&scene->suspect, (struct mock_access){ .kind = MOCK_WRITE, .va = NEW_VA,
										.copy_engine = 1 }), MOCK_DONE_SPARSE);
	EXPECT(scene, try_range(&scene->suspect, NEW_VA, 2 * MIB) != NV_OK, "a new range was made");
}

static void unpoisoned(struct scene *scene)
{
	EXPECT(scene, try_range(&scene->suspect, NEW_VA, 2 * MIB) == NV_OK, "no range");
	EXPECT(scene, try_sparse(&scene->suspect, NEW_VA, 2 * MIB) == NV_OK, "no sparse mapping");
	EXPECT(scene, try_channel(&scene->suspect, 77) == NV_OK, "no channel");
	EXPECT(scene, try_semaphore_pool(&scene->suspect, RANGE_VA, 64 * KIB) == NV_OK, "no semaphore pool");
	EXPECT(scene, try_parallelism_region(&scene->suspect, NEW_VA + GIB, 2 * MIB) == NV_OK, "no region");
	EXPECT(scene, try_managed(&scene->suspect, MANAGED_VA, 2 * MIB) != MAP_FAILED, "no managed memory");
}

static void taking_away(struct scene *scene)
{
	map_new(&scene->suspect, RANGE_VA, 8 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	poison(scene);
	EXPECT(scene, scene->failed || try_unmap(&scene->suspect, RANGE_VA, 64 * KIB) == NV_OK, "no unmap");
	EXPECT(scene, scene->failed || try_free(&scene->suspect, RANGE_VA, 8 * MIB) == NV_OK, "no free");
}

static void others_are_not_poisoned(struct scene *scene)
{
	struct client other = open_client(scene->tsg, 2);

	poison(scene);
	EXPECT(scene, scene->failed || try_range(&other, NEW_VA, 2 * MIB) == NV_OK, "another client got no range");
	close_client(&other);
}

const struct test_case refusal_cases[] = {
	{ "without a fault nothing is refused", ALWAYS, unpoisoned },
	{ "poisoned: no new range", CONTAINED, range },
	{ "poisoned: no new mapping in an old range", CONTAINED, mapping },
	{ "poisoned: no sparse mapping", CONTAINED, sparse },
	{ "poisoned: no managed memory", CONTAINED, managed },
	{ "poisoned: no channel", CONTAINED, channel },
	{ "poisoned: no semaphore pool", CONTAINED, semaphore_pool },
	{ "poisoned: no dynamic parallelism region", CONTAINED, parallelism_region },
	{ "a copy engine's fault poisons as well", CONTAINED, poisoned_by_a_copy_engine },
	{ "poisoned: unmap and free still work", CONTAINED, taking_away },
	{ "other clients of the TSG are not poisoned", CONTAINED, others_are_not_poisoned },
	{ 0 },
};
