// SPDX-License-Identifier: MIT OR GPL-2.0
/* How a poisoned client ends. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "case.h"

#define WILD_VA 0x7fff12345000ULL

static void leaves_with_sinks(struct scene *scene)
{
	unsigned long long before;
	struct client leaver;
	unsigned int i;

	before = statistics(scene->tsg).chunks_used;
	leaver = open_client(scene->tsg, 3);
	for (i = 0; i < 64; i++)
		EXPECT_ACCESS(scene, access_as(&leaver, MOCK_WRITE, i * 2 * GIB, 1), MOCK_DONE_SPARSE);
	close_client(&leaver);
	EXPECT(scene, statistics(scene->tsg).chunks_used <= before, "%llu chunks of video memory before, %llu after",
	       before, statistics(scene->tsg).chunks_used);
}

/* A process that accesses wild memory for as long as it lives. */
static pid_t start_offender(unsigned int tsg, unsigned int veid, int ready)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct client client = open_client(tsg, veid);
		uint64_t at;

		for (at = 0;; at += 2 * MIB) {
			struct mock_access done = access_as(&client, MOCK_WRITE, at % (256 * GIB), 1);

			if (at == 8 * MIB && write(ready, done.ending == MOCK_DONE_SPARSE ? "y" : "n", 1) != 1)
				_exit(1);
		}
	}
	return pid;
}

static void killed_while_faulting(struct scene *scene)
{
	int ready[2], status;
	char answer = 0;
	pid_t pid;

	if (pipe(ready))
		die("make a pipe");
	pid = start_offender(scene->tsg, 4, ready[1]);
	if (read(ready[0], &answer, 1) != 1)
		answer = 0;
	kill(pid, SIGKILL);
	EXPECT(scene, waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "the offender is still there");
	EXPECT(scene, answer == 'y', "the offender's faults are not contained");
	EXPECT(scene, !statistics(scene->tsg).tsg_dead, "the group died with it");
}

static void two_offenders(struct scene *scene)
{
	struct client other = open_client(scene->tsg, 2);
	unsigned int i;

	for (i = 0; i < 8; i++) {
		EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA + i * 4 * MIB, 1), MOCK_DONE_SPARSE);
		EXPECT_ACCESS(scene, access_as(&other, MOCK_READ, WILD_VA + i * 4 * MIB, 1), MOCK_DONE_SPARSE);
	}
	close_client(&other);
}

static void only_the_mm_is_closed(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	close(scene->suspect.mm);
	close(scene->suspect.uvm);
	scene->suspect.uvm = scene->suspect.mm = -1;
	EXPECT(scene, !statistics(scene->tsg).tsg_dead, "the group died");
}

const struct test_case ending_cases[] = {
	{ "a client leaves with 64 sinks, their memory comes back", CONTAINED, leaves_with_sinks },
	{ "a client is killed in the middle of its faults", CONTAINED, killed_while_faulting },
	{ "two clients fault in turn", CONTAINED, two_offenders },
	{ "a poisoned client closes its VA space", CONTAINED, only_the_mm_is_closed },
	{ 0 },
};
