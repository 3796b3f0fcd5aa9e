// SPDX-License-Identifier: MIT OR GPL-2.0
#define _GNU_SOURCE
#include "recycled.h"

#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "reports.h"

#define WILD_VA 0x7fff12345000ULL
#define TURNS 60000
#define ATTEMPTS 1000
#define TICKS_A_SECOND 100	/* USER_HZ */
#define TICK_NS (1000000000 / TICKS_A_SECOND)

/* What the owner hands over, beside its descriptors. */
struct handed {
	struct client client;
	unsigned int ending;
};

static void send_client(int to, const struct handed *handed)
{
	int fds[3] = { handed->client.uvm, handed->client.mm, handed->client.gpu };
	char room[CMSG_SPACE(sizeof(fds))] = { 0 };
	struct iovec data = { (void *)handed, sizeof(*handed) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(head), fds, sizeof(fds));
	if (sendmsg(to, &message, 0) != sizeof(*handed))
		_exit(1);
}

static struct handed receive_client(int from)
{
	struct handed handed;
	int fds[3];
	char room[CMSG_SPACE(sizeof(fds))];
	struct iovec data = { &handed, sizeof(handed) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	struct cmsghdr *head;

	if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != sizeof(handed) || !(head = CMSG_FIRSTHDR(&message)))
		die("get an owner's descriptors");
	memcpy(fds, CMSG_DATA(head), sizeof(fds));
	handed.client.uvm = fds[0];
	handed.client.mm = fds[1];
	handed.client.gpu = fds[2];
	return handed;
}

/* The report is made by a thread of the module, and says whether the owner lives at that moment. */
static void wait_for_report(void)
{
	char text[400], owner[80];
	const char *wanted[] = { owner, " gone=0 ", "" };
	unsigned int turn;

	snprintf(owner, sizeof(owner), " pid=%d start=%llu alive=1 ", getpid(), start_of(getpid()));
	for (turn = 0, text[0] = 0; turn < TURNS && !text[0]; turn++) {
		find_record(text, sizeof(text), wanted);
		if (!text[0])
			usleep(1000);
	}
}

/* Two processes of one pid are told apart by the clock tick in which they began. */
static void wait_for_another_tick(unsigned long long than)
{
	struct timespec now;

	for (;;) {
		clock_gettime(CLOCK_BOOTTIME, &now);
		if ((unsigned long long)now.tv_sec * TICKS_A_SECOND + (unsigned long long)now.tv_nsec / TICK_NS > than)
			return;
		usleep(2000);
	}
}

/* Another process can have the pid for a moment: as often as it takes. */
static pid_t start_heir(pid_t wanted)
{
	struct clone_args args = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&wanted, .set_tid_size = 1 };
	unsigned int attempt;

	for (attempt = 0; attempt < ATTEMPTS; attempt++) {
		pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));

		if (pid == 0)
			for (;;)
				pause();
		if (pid > 0)
			return pid;
		if (errno != EEXIST)
			die("choose a pid");
		usleep(1000);
	}
	return 0;
}

struct recycled recycle(unsigned int tsg, unsigned int veid, bool faults)
{
	struct recycled made = { 0 };
	struct handed handed;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		die("make a pair of sockets");
	made.owner.pid = fork();
	if (made.owner.pid == 0) {
		handed = (struct handed){ .client = open_client(tsg, veid) };
		if (faults) {
			handed.ending = access_as(&handed.client, MOCK_WRITE, WILD_VA, 1).ending;
			if (handed.ending == MOCK_DONE_SPARSE)
				wait_for_report();
		}
		send_client(ends[1], &handed);
		pause();
		_exit(0);
	}
	made.owner.start = start_of(made.owner.pid);
	handed = receive_client(ends[0]);
	made.client = handed.client;
	made.ending = handed.ending;
	close(ends[0]);
	close(ends[1]);
	kill(made.owner.pid, SIGKILL);
	waitpid(made.owner.pid, NULL, 0);
	wait_for_another_tick(made.owner.start);
	made.heir.pid = start_heir(made.owner.pid);
	made.heir.start = made.heir.pid ? start_of(made.heir.pid) : 0;
	return made;
}

void end_recycled(struct recycled *made)
{
	close_client(&made->client);
	if (made->heir.pid) {
		kill(made->heir.pid, SIGKILL);
		waitpid(made->heir.pid, NULL, 0);
	}
}
