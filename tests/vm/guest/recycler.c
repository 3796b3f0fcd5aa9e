// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * recycler TSG: clients of owners that end, and the pids of these are given away; for tests written in another language. One answer a line:
 *   before    the owner ends, a process of the same pid begins: "OWNER START HEIR START"
 *   since     the same, and the owner has faulted before
 *   fault     after `before`: a wild access by what the owner left: "fault ENDING" (enum mock_ending)
 *   end       heir and client go: "end ENDING", that of the owner's access
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "client.h"
#include "recycled.h"

#define WILD_VA 0x7fff12345000ULL
#define NEIGHBOUR_VEID 1
#define FIRST_VEID 2
#define VEIDS 60

int main(int argc, char **argv)
{
	unsigned int tsg, turn = 0;
	struct recycled made;
	char line[80];

	if (argc != 2) {
		fprintf(stderr, "usage: recycler TSG\n");
		return 2;
	}
	tsg = (unsigned int)atoi(argv[1]);
	make_device_nodes();
	signal(SIGBUS, SIG_IGN);
	/* The group is to be a shared one. */
	(void)open_client(tsg, NEIGHBOUR_VEID);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strncmp(line, "before", 6) || !strncmp(line, "since", 5)) {
			made = recycle(tsg, FIRST_VEID + turn++ % VEIDS, line[0] == 's');
			printf("%d %llu %d %llu\n", made.owner.pid, made.owner.start, made.heir.pid, made.heir.start);
		} else if (!strncmp(line, "fault", 5)) {
			printf("fault %u\n", access_as(&made.client, MOCK_WRITE, WILD_VA, 1).ending);
		} else {
			end_recycled(&made);
			printf("end %u\n", made.ending);
		}
		fflush(stdout);
	}
	return 0;
}
