// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * service ROUNDS: faults on managed memory, each in 2 MiB of its own, one by an SM and one by a copy engine in turn, and
 * nothing else. After them, if the module contains faults, one of an SM that is contained. One JSON line at the end; exit
 * status 0 if all were serviced, and that one contained.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client.h"

#define TSG 1
#define MANAGED_VA 0x7c0000000000ULL
#define WILD_VA 0x10000000000ULL

/* This client has no group to hurt and no agent, and is to live to the end. */
static bool contains_faults(void)
{
	return set_parameter("uvm_fault_isolation", 2) && set_parameter("uvm_fault_isolation_without_agent", 1) &&
	       set_parameter("uvm_fault_isolation_signal", 0);
}

int main(int argc, char **argv)
{
	unsigned long round, rounds = argc == 2 ? strtoul(argv[1], NULL, 10) : 0, faults = 0;
	volatile uint64_t *memory;
	struct client client;
	bool contained;

	if (!rounds) {
		fprintf(stderr, "usage: service ROUNDS\n");
		return 2;
	}
	make_device_nodes();
	client = open_client(TSG, 1);
	memory = try_managed(&client, MANAGED_VA, rounds * 4 * MIB);
	if (memory == MAP_FAILED)
		die("get managed memory");
	for (round = 0; round < 2 * rounds; round++) {
		uint64_t offset = round * 2 * MIB;
		struct mock_access done;

		memory[offset / 8] = round;
		done = access_full(&client, (struct mock_access){ .kind = MOCK_WRITE, .va = MANAGED_VA + offset,
								  .value = 1, .copy_engine = round % 2 });
		if (done.ending != MOCK_DONE || done.faults != 1)
			return 1;
		faults += done.faults;
	}
	contained = contains_faults();
	if (contained && access_as(&client, MOCK_WRITE, WILD_VA, 1).ending != MOCK_DONE_SPARSE)
		return 1;
	close_client(&client);
	printf("{\"faults\": %lu, \"contained\": %d}\n", faults, contained);
	return 0;
}
