// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * agent TSG VEID: a client that does what it is told, for tests written in another language. One answer a line:
 *   own       work on own memory; "own 1" if it holds what was written
 *   wild VA   store to VA; "wild ENDING" (enum mock_ending)
 *   signals   how often it was told of a fault of its own
 *   dead      "dead 1" if the TSG is
 */
#include <stdio.h>
#include <stdlib.h>

#include "client.h"
#include "reports.h"

#define OWN_VA 0x500000000ULL

static bool work(const struct client *client)
{
	static uint64_t count;
	struct mock_access wrote = access_as(client, MOCK_WRITE, OWN_VA, ++count);
	struct mock_access got = access_as(client, MOCK_READ, OWN_VA, 0);

	return wrote.ending == MOCK_DONE && got.ending == MOCK_DONE && got.value == count;
}

int main(int argc, char **argv)
{
	char line[80];
	struct client client;

	if (argc != 3) {
		fprintf(stderr, "usage: agent TSG VEID\n");
		return 2;
	}
	make_device_nodes();
	survive_the_signal();
	client = open_client((unsigned int)atoi(argv[1]), (unsigned int)atoi(argv[2]));
	map_new(&client, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strncmp(line, "own", 3))
			printf("own %d\n", work(&client));
		else if (!strncmp(line, "wild ", 5))
			printf("wild %u\n", access_as(&client, MOCK_WRITE, strtoull(line + 5, NULL, 0), 1).ending);
		else if (!strncmp(line, "signals", 7))
			printf("signals %u\n", signals_seen());
		else
			printf("dead %u\n", statistics(client.tsg).tsg_dead);
		fflush(stdout);
	}
	return 0;
}
