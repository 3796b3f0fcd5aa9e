// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * NVIDIA's own tests of nvidia-uvm (uvm_enable_builtin_tests=1), and ours of the patched module among them; one JSON line
 * for each, 0 is success.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "uvm_test_ioctl.h"
#include "uvm_fault_isolation_test.h"
#include "client.h"

#define RUN(name, ...)										\
	do {											\
		UVM_TEST_##name##_PARAMS parameters = { __VA_ARGS__ };				\
		time_t start = time(NULL);							\
		int result = ioctl(client.uvm, UVM_TEST_##name, &parameters);			\
												\
		printf("{\"builtin\": \"%s\", \"result\": %d, \"status\": %u, \"s\": %ld}\n",	\
		       #name, result, (unsigned int)parameters.rmStatus, (long)(time(NULL) - start));	\
		fflush(stdout);									\
	} while (0)

#define WILD_VA 0x7a0000000000ULL
#define LATER_VA 0x7b0000000000ULL
/* What a packet says of an address without an entry; the mock reports such an access so whatever entry there is. */
#define NO_ENTRY 2
/* In the pass that places its sink and in the next one, each of which replays when it begins and when it ends. */
#define MOST_FAULTS 6

static void put_line(const char *name, bool fine)
{
	printf("{\"builtin\": \"%s\", \"result\": %d, \"status\": 0, \"s\": 0}\n", name, !fine);
	fflush(stdout);
}

/* Of a GPU that does not heed its sink an access is not replayed for ever. */
static bool is_cancelled_soon(bool copy_engine)
{
	struct client client = open_client(2 + copy_engine, 1);
	struct mock_access done = access_full(&client, (struct mock_access){
		.kind = MOCK_WRITE, .va = WILD_VA, .fault_type = NO_ENTRY, .copy_engine = copy_engine });

	close_client(&client);
	return done.ending == MOCK_TSG_DEAD && done.faults > 1 && done.faults <= MOST_FAULTS;
}

/* Where our test has put its sinks, accesses end without a fault; and its client gets nothing new. */
static void run_ours(struct client client)
{
	struct mock_access wrote, beside;

	RUN(FAULT_ISOLATION, .gpu_uuid = { .uuid = MOCK_GPU_UUID }, .address = WILD_VA);
	wrote = access_as(&client, MOCK_WRITE, WILD_VA, 1);
	beside = access_as(&client, MOCK_READ, WILD_VA + 64 * KIB, 0);
	put_line("FAULT_ISOLATION, its sink absorbs", wrote.ending == MOCK_DONE_SPARSE && !wrote.faults);
	put_line("FAULT_ISOLATION, beside it", beside.ending == MOCK_DONE_SPARSE && !beside.value);
	put_line("FAULT_ISOLATION, no new range", try_range(&client, LATER_VA, 2 * MIB) == NV_ERR_INVALID_STATE);
	put_line("FAULT_ISOLATION, the group lives", !statistics(client.tsg).tsg_dead);
	put_line("FAULT_ISOLATION, an SM's fault in spite of its sink is cancelled", is_cancelled_soon(false));
	put_line("FAULT_ISOLATION, a copy engine's fault in spite of its sink is cancelled", is_cancelled_soon(true));
}

/* `program all`: the test of the memory manager, too, which takes as long as all others together. */
int main(int argc, char **argv)
{
	bool all = argc > 1 && !strcmp(argv[1], "all");
	struct client client;

	make_device_nodes();
	client = open_client(1, 1);
	RUN(RNG_SANITY, .rmStatus = 0);
	RUN(RANGE_TREE_DIRECTED, .rmStatus = 0);
	RUN(RB_TREE_DIRECTED, .rmStatus = 0);
	RUN(RANGE_ALLOCATOR_SANITY, .iters = 1000, .seed = 1);
	RUN(LOCK_SANITY, .rmStatus = 0);
	RUN(KVMALLOC, .rmStatus = 0);
	RUN(NV_KTHREAD_Q, .rmStatus = 0);
	RUN(PERF_UTILS_SANITY, .rmStatus = 0);
	RUN(PERF_EVENTS_SANITY, .rmStatus = 0);
	RUN(PAGE_TREE, .rmStatus = 0);
	RUN(RM_MEM_SANITY, .rmStatus = 0);
	RUN(MEM_SANITY, .rmStatus = 0);
	RUN(GPU_SEMAPHORE_SANITY, .rmStatus = 0);
	RUN(TRACKER_SANITY, .rmStatus = 0);
	RUN(PUSH_SANITY, .skipTimestampTest = 1);
	RUN(CE_SANITY, .skipTimestampTest = 1);
	RUN(HOST_SANITY, .rmStatus = 0);
	RUN(FAULT_BUFFER_FLUSH, .iterations = 100);
	if (all)
		RUN(PMM_SANITY, .mode = UvmTestPmmSanityModeBasic);
	RUN(VA_BLOCK, .rmStatus = 0);
	/* Of a contained fault the client is told so. */
	signal(SIGBUS, SIG_IGN);
	set_parameter("uvm_fault_isolation_without_agent", 1);
	if (set_parameter("uvm_fault_isolation", 2))
		run_ours(client);
	close_client(&client);
	return 0;
}
