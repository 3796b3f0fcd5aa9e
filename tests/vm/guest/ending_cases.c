// SPDX-License-Identifier: MIT OR GPL-2.0
/* How it is told, and how a poisoned client ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/netlink.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "case.h"

#define WILD_VA 0x7fff12345000ULL
#define PATIENCE_MS 60000

static void tools_event(struct scene *scene)
{
	UvmToolsEventControlData *control;
	struct pollfd readable = { .events = POLLIN };

	EXPECT(scene, try_tools_queue(&scene->suspect, &readable.fd, &control) == NV_OK, "no event queue");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, poll(&readable, 1, PATIENCE_MS) == 1, "no event");
	EXPECT(scene, control->put_behind == 1, "%u events", (unsigned int)control->put_behind);
	close(readable.fd);
}

int listen_to_uevents(void)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = 1 };
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		die("listen to uevents");
	return fd;
}

void next_report(int fd, char *text, size_t size)
{
	struct pollfd readable = { .fd = fd, .events = POLLIN };

	text[0] = 0;
	while (poll(&readable, 1, PATIENCE_MS) == 1) {
		ssize_t length = recv(fd, text, size - 1, 0), i;

		if (length <= 0)
			break;
		text[length] = 0;
		for (i = 0; i < length; i++)
			if (!text[i])
				text[i] = ' ';
		if (strstr(text, "fault_contained"))
			return;
	}
	text[0] = 0;
}

static void uevent(struct scene *scene)
{
	char text[2048], pid[40];
	int fd = listen_to_uevents();

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	next_report(fd, text, sizeof(text));
	close(fd);
	snprintf(pid, sizeof(pid), " PID=%d ", getpid());
	EXPECT(scene, strstr(text, "change@/module/nvidia_uvm"), "no uevent of the module: %s", text);
	EXPECT(scene, strstr(text, pid) && strstr(text, " VA=0x7fff12345000 ") && strstr(text, " ACCESS=WRITE "),
	       "the uevent does not say who, where and what: %s", text);
}

static void one_uevent_a_client(struct scene *scene)
{
	struct pollfd readable = { .fd = listen_to_uevents(), .events = POLLIN };
	char text[2048];

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	next_report(readable.fd, text, sizeof(text));
	EXPECT(scene, text[0], "no uevent");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA + GIB, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, poll(&readable, 1, 300) == 0, "a second uevent for the same client");
	close(readable.fd);
}

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
		EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, i * 4 * MIB, 1), MOCK_DONE_SPARSE);
		EXPECT_ACCESS(scene, access_as(&other, MOCK_READ, i * 4 * MIB, 1), MOCK_DONE_SPARSE);
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
	{ "the tools queue tells of a contained fault, once", CONTAINED, tools_event },
	{ "a uevent says who, where and what", CONTAINED, uevent },
	{ "one uevent a client", CONTAINED, one_uevent_a_client },
	{ "a client leaves with 64 sinks, their memory comes back", CONTAINED, leaves_with_sinks },
	{ "a client is killed in the middle of its faults", CONTAINED, killed_while_faulting },
	{ "two clients fault in turn", CONTAINED, two_offenders },
	{ "a poisoned client closes its VA space", CONTAINED, only_the_mm_is_closed },
	{ 0 },
};
