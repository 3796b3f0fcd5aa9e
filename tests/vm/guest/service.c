// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * service FAULTS: faults on managed memory, which the driver services as any program's; none of them is fatal. Says
 * "ready" when the first ones are through, waits for a line, does FAULTS more, says "done", and waits for another.
 */
#include <stdio.h>
#include <stdlib.h>

#include "client.h"

#define MANAGED_VA 0x7c0000000000ULL
#define WARM 8

static void fault(const struct client *client, uint64_t block)
{
	struct mock_access done = access_as(client, MOCK_WRITE, MANAGED_VA + block * 2 * MIB, block);

	if (done.ending != MOCK_DONE || done.faults == 0) {
		fprintf(stderr, "block %llu: ended %u after %u faults\n", (unsigned long long)block, done.ending,
			done.faults);
		exit(1);
	}
}

static void say_and_wait(const char *word)
{
	char line[16];

	puts(word);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(1);
}

int main(int argc, char **argv)
{
	uint64_t block, faults = argc == 2 ? strtoull(argv[1], NULL, 0) : 0;
	struct client client;

	if (!faults) {
		fprintf(stderr, "usage: service FAULTS\n");
		return 2;
	}
	make_device_nodes();
	client = open_client(1, 0);
	if (try_managed(&client, MANAGED_VA, (WARM + faults) * 2 * MIB) != (void *)MANAGED_VA)
		die("get managed memory");
	for (block = 0; block < WARM; block++)
		fault(&client, block);
	say_and_wait("ready");
	for (; block < WARM + faults; block++)
		fault(&client, block);
	say_and_wait("done");
	close_client(&client);
	return 0;
}
