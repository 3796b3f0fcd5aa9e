// SPDX-License-Identifier: MIT OR GPL-2.0
/* NVIDIA's own tests of nvidia-uvm (uvm_enable_builtin_tests=1); one JSON line for each, 0 is success. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>

#include "uvm_test_ioctl.h"
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

int main(void)
{
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
	RUN(PMM_SANITY, .mode = UvmTestPmmSanityModeBasic);
	RUN(VA_BLOCK, .rmStatus = 0);
	close_client(&client);
	return 0;
}
