// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * service ROUNDS: faults on managed memory, each in 2 MiB of its own, one by an SM and one by a copy engine in turn, and
 * nothing else. One JSON line at the end; exit status 0 if all were serviced.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client.h"

#define TSG 1
#define MANAGED_VA 0x7c0000000000ULL

int main(int argc, char **argv)
{
	unsigned long round, rounds = argc == 2 ? strtoul(argv[1], NULL, 10) : 0, faults = 0;
	volatile uint64_t *memory;
	struct client client;

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
	close_client(&client);
	printf("{\"faults\": %lu}\n", faults);
	return 0;
}
