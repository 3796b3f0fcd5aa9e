// SPDX-License-Identifier: MIT OR GPL-2.0
/* Kernels that run past an array's end, or follow pointers at random, with many accesses at once. */
#include <stdio.h>

#include "case.h"

#define WILD_VA 0x10000000000ULL
#define RANGE_VA 0x400000000ULL
#define TIB (1024ULL * GIB)
#define MOST_SINKS 600

static long sinks(void)
{
	return get_parameter("uvm_fault_isolation_sinks");
}

static void one_page(struct scene *scene)
{
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = WILD_VA, .stride = 8, .count = 512, .in_flight = 128 }));
	EXPECT(scene, sinks() == 1, "%ld sinks", sinks());
}

static void one_block(struct scene *scene)
{
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = WILD_VA, .stride = 4 * KIB, .count = 512, .in_flight = 256 }));
	EXPECT(scene, sinks() == 1, "%ld sinks", sinks());
}

static void long_overrun(struct scene *scene)
{
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = WILD_VA, .stride = 64 * KIB, .count = 260 * MIB / (64 * KIB), .in_flight = 256 }));
	EXPECT(scene, sinks() <= 130, "%ld sinks", sinks());
}

static void random_over_a_tebibyte(struct scene *scene)
{
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_ATOMIC, .va = WILD_VA, .seed = 1, .span = TIB, .count = 4000, .in_flight = 64 }));
	EXPECT(scene, sinks() <= MOST_SINKS, "%ld sinks", sinks());
}

static void accounted(struct scene *scene)
{
	long chunks = (long)statistics(scene->tsg).chunks_used, kib;
	struct client leaver = open_client(scene->tsg, 3);

	EXPECT_BURST(scene, access_many(&leaver, (struct mock_burst){
		.kind = MOCK_WRITE, .va = WILD_VA, .stride = 4 * GIB, .count = 8, .in_flight = 4 }));
	kib = get_parameter("uvm_fault_isolation_sinks_kib");
	EXPECT(scene, sinks() == 8 && kib >= 8 * 12 && kib <= 8 * 32, "%ld sinks, %ld KiB", sinks(), kib);
	close_client(&leaver);
	kib = get_parameter("uvm_fault_isolation_sinks_kib");
	EXPECT(scene, sinks() == 0 && kib == 0, "%ld sinks, %ld KiB after their client", sinks(), kib);
	EXPECT(scene, (long)statistics(scene->tsg).chunks_used <= chunks + 1, "video memory was not given back");
}

static void out_of_a_range(struct scene *scene)
{
	struct mock_burst done;

	map_new(&scene->suspect, RANGE_VA, 8 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	done = access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = RANGE_VA, .stride = 4 * KIB, .count = 4096, .in_flight = 64 });
	EXPECT(scene, done.endings[MOCK_DONE] == 16 && done.endings[MOCK_DONE_SPARSE] == 4096 - 16,
	       "%llu on memory, %llu in a sink, %llu dead", done.endings[MOCK_DONE], done.endings[MOCK_DONE_SPARSE],
	       done.endings[MOCK_TSG_DEAD]);
}

/* Its own memory, here and there in what it runs over, keeps what is written to it, and what was there. */
static void over_own_memory(struct scene *scene)
{
	struct client *suspect = &scene->suspect;
	struct mock_burst done;
	unsigned int i;

	for (i = 0; i < 16; i++) {
		map_new(suspect, RANGE_VA + i * 4 * MIB + i * 68 * KIB, 4 * KIB, 4 * KIB, 4 * KIB, UvmGpuMappingTypeDefault);
		EXPECT_ACCESS(scene, access_as(suspect, MOCK_WRITE, RANGE_VA + i * 4 * MIB + i * 68 * KIB + 8, i), MOCK_DONE);
	}
	done = access_many(suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = RANGE_VA, .stride = 4 * KIB, .count = 16384, .in_flight = 128 });
	EXPECT(scene, done.endings[MOCK_DONE] == 16 && done.endings[MOCK_DONE_SPARSE] == 16384 - 16,
	       "%llu on memory, %llu in a sink, %llu dead", done.endings[MOCK_DONE], done.endings[MOCK_DONE_SPARSE],
	       done.endings[MOCK_TSG_DEAD]);
	for (i = 0; i < 16; i++) {
		struct mock_access read = access_as(suspect, MOCK_READ, RANGE_VA + i * 4 * MIB + i * 68 * KIB + 8, 0);

		EXPECT(scene, read.ending == MOCK_DONE && read.value == i, "ended %u, read %llu", read.ending, read.value);
	}
}

/* All of a read-only array, with overlays of single pages. */
static void over_read_only_memory(struct scene *scene)
{
	map_new(&scene->suspect, RANGE_VA, 4 * MIB, 2 * MIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_BURST(scene, access_many(&scene->suspect, (struct mock_burst){
		.kind = MOCK_WRITE, .va = RANGE_VA, .stride = 4 * KIB, .count = 1024, .in_flight = 64 }));
}

/* What was in small sinks stays contained in the large one that takes their place; so does what was a range once. */
static void small_sinks_become_one(struct scene *scene)
{
	uint64_t i;

	map_new(&scene->suspect, RANGE_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeReadOnly);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, try_free(&scene->suspect, RANGE_VA, 2 * MIB) == NV_OK, "no free");
	for (i = 0; i < 40; i++)
		EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + i * 2 * MIB + 8, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, translate(&scene->suspect, RANGE_VA).page_size == 2 * MIB, "the sink did not become larger");
	for (i = 0; i < 40; i++) {
		struct mock_access again = access_as(&scene->suspect, MOCK_READ, RANGE_VA + i * 2 * MIB, 1);

		EXPECT(scene, again.ending == MOCK_DONE_SPARSE && !again.faults, "ended %u, %u faults", again.ending,
		       again.faults);
	}
}

const struct test_case overrun_cases[] = {
	{ "many faults at once in a page: one sink", CONTAINED, one_page },
	{ "many faults at once in 2 MiB: one sink", CONTAINED, one_block },
	{ "overrun of 260 MiB, 256 accesses at a time", CONTAINED, long_overrun },
	{ "random pointers over 1 TiB", CONTAINED, random_over_a_tebibyte },
	{ "what sinks cost is counted, and given back", CONTAINED, accounted },
	{ "overrun out of a mapping, its range, and behind", CONTAINED, out_of_a_range },
	{ "overrun over small mappings of one's own", CONTAINED, over_own_memory },
	{ "a loop writes to all of a read-only array", CONTAINED, over_read_only_memory },
	{ "small sinks become a large one", CONTAINED, small_sinks_become_one },
	{ 0 },
};
