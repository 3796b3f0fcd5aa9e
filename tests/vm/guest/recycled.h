/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* A client that another process has, after the one that made it has ended and its pid was given to a third one. */
#ifndef RECYCLED_H
#define RECYCLED_H

#include <stdbool.h>
#include <sys/types.h>

#include "client.h"

struct known_process {
	pid_t pid;
	unsigned long long start;	/* field 22 of /proc/PID/stat */
};

struct recycled {
	struct known_process owner, heir;
	struct client client;	/* the caller's descriptors of what the owner made */
	unsigned int ending;	/* enum mock_ending of the owner's access, if it was to make one */
};

/* `faults`: the owner itself makes a wild access, which has been reported before it ends. */
struct recycled recycle(unsigned int tsg, unsigned int veid, bool faults);

/* Ends the heir, closes the client. */
void end_recycled(struct recycled *made);

#endif
