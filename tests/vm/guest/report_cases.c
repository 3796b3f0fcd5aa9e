// SPDX-License-Identifier: MIT OR GPL-2.0
/* What agent, users and client are told of a contained fault; and that none is contained without an agent. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "case.h"
#include "recycled.h"
#include "reports.h"

#define WILD_VA 0x7fff12345000ULL
#define PATIENCE 60000	/* turns of 1 ms */
#define A_USER 1000

static void tools_event(struct scene *scene)
{
	UvmToolsEventControlData *control;
	struct pollfd readable = { .events = POLLIN };

	EXPECT(scene, try_tools_queue(&scene->suspect, &readable.fd, &control) == NV_OK, "no event queue");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	EXPECT(scene, poll(&readable, 1, PATIENCE) == 1, "no event");
	EXPECT(scene, control->put_behind == 1, "%u events", (unsigned int)control->put_behind);
	close(readable.fd);
}

static void uevent(struct scene *scene)
{
	char text[2048], owner[80];
	int fd = listen_to_uevents();

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	next_report(fd, text, sizeof(text));
	close(fd);
	snprintf(owner, sizeof(owner), " PID=%d START=%llu ALIVE=1 ", getpid(), start_of(getpid()));
	EXPECT(scene, strstr(text, "change@/module/nvidia_uvm"), "no uevent of the module: %s", text);
	EXPECT(scene, strstr(text, owner) && strstr(text, " ACCESS=WRITE "), "it does not say which process and what: %s",
	       text);
	EXPECT(scene, !strstr(text, "7fff1234"), "it tells every user the address: %s", text);
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

/* The list's line of this process, once it is there. */
static void wait_for_record(char *text, size_t size, const char *more)
{
	char owner[80];
	const char *wanted[] = { owner, more, "" };
	unsigned int turn;

	snprintf(owner, sizeof(owner), " pid=%d start=%llu alive=1 ", getpid(), start_of(getpid()));
	for (turn = 0, text[0] = 0; turn < PATIENCE && !text[0]; turn++) {
		find_record(text, size, wanted);
		usleep(1000);
	}
}

static void record(struct scene *scene)
{
	char text[400];

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	wait_for_record(text, sizeof(text), " gone=0 ");
	EXPECT(scene, strstr(text, " address=0x7fff12345000 access=WRITE ") && strstr(text, " engine=SM "),
	       "the list does not say where and what: %s", text);
}

static void record_outlives_the_client(struct scene *scene)
{
	char text[400];

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	close_client(&scene->suspect);
	scene->suspect.uvm = -1;
	wait_for_record(text, sizeof(text), " gone=1 ");
	EXPECT(scene, text[0], "the list has forgotten it");
}

static void list_is_for_root(struct scene *scene)
{
	struct stat found;
	int fd, error;

	EXPECT(scene, stat(FAULT_LIST, &found) == 0, "no list");
	EXPECT(scene, (found.st_mode & 07777) == 0400 && found.st_uid == 0, "mode %o", found.st_mode);
	if (seteuid(A_USER))
		die("be a user");
	fd = open(FAULT_LIST, O_RDONLY | O_CLOEXEC);
	error = errno;
	if (seteuid(0))
		die("be root again");
	EXPECT(scene, fd < 0 && error == EACCES, "a user opens the list");
}

/* Open the list as root without a capability, or as one that has all in a user namespace; return the error. */
static int open_as_root_of_a_container(bool own_namespace)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		if (own_namespace ? unshare(CLONE_NEWUSER) : (int)syscall(SYS_capset, &header, none))
			_exit(255);
		_exit(open(FAULT_LIST, O_RDONLY | O_CLOEXEC) < 0 ? errno : 0);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void list_is_for_root_of_the_machine(struct scene *scene)
{
	int without = open_as_root_of_a_container(false);
	int elsewhere = open_as_root_of_a_container(true);

	EXPECT(scene, without == EPERM && elsewhere == EPERM, "root without capabilities: error %d, of a user namespace: %d",
	       without, elsewhere);
}

static void wait_for_signals(unsigned int wanted)
{
	unsigned int turn;

	for (turn = 0; turn < PATIENCE && signals_seen() < wanted; turn++)
		usleep(1000);
}

static void signal_to_the_client(struct scene *scene)
{
	char text[400];

	survive_the_signal();
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	wait_for_signals(1);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA + GIB, 1), MOCK_DONE_SPARSE);
	wait_for_record(text, sizeof(text), "");
	EXPECT(scene, signals_seen() == 1, "%u signals", signals_seen());
}

/* A process of its own, so that it can end by the signal; returns how it ended. */
static int offend_in_a_process(unsigned int tsg, bool default_disposition)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		struct client client = open_client(tsg, 4);
		char text[400];

		if (default_disposition)
			signal(SIGBUS, SIG_DFL);
		if (access_as(&client, MOCK_WRITE, WILD_VA, 1).ending != MOCK_DONE_SPARSE)
			_exit(1);
		wait_for_record(text, sizeof(text), "");
		usleep(default_disposition ? PATIENCE * 1000 : 100000);
		_exit(2);
	}
	waitpid(pid, &status, 0);
	return status;
}

static void signal_ends_the_client(struct scene *scene)
{
	int status = offend_in_a_process(scene->tsg, true);

	EXPECT(scene, WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "wait status 0x%x", status);
}

/*
 * Makes an address space, leaves it to a child, and executes another program; the child says how its access ended, which
 * it makes when that program runs.
 */
static pid_t start_owner_that_executes(unsigned int tsg, int result)
{
	struct mock_access done;
	struct client client;
	int running[2];
	char word;
	pid_t pid = fork();

	if (pid)
		return pid;
	signal(SIGBUS, SIG_DFL);
	client = open_client(tsg, 6);
	if (pipe2(running, O_CLOEXEC))
		_exit(1);
	pid = fork();
	if (pid > 0) {
		if (dup2(running[1], STDOUT_FILENO) >= 0)
			execl("/proc/self/exe", "scenario", STAY, NULL);
		_exit(1);
	}
	close(running[1]);
	if (pid < 0 || read(running[0], &word, 1) != 1)
		_exit(1);
	done = access_as(&client, MOCK_WRITE, WILD_VA, 1);
	_exit(write(result, &done, sizeof(done)) != sizeof(done));
}

/* The owner ends before anything is judged: it has the neighbour's pipe open, and would keep it waiting. */
static void no_signal_after_an_exec(struct scene *scene)
{
	struct mock_access done = { 0 }, own;
	int result[2], status = -1;
	ssize_t got;
	pid_t owner;

	if (pipe2(result, O_CLOEXEC))
		die("make a pipe");
	owner = start_owner_that_executes(scene->tsg, result[1]);
	close(result[1]);
	got = read(result[0], &done, sizeof(done));
	close(result[0]);
	/* Reports are made one after the other: when this one's signal has come, that one's has been sent. */
	survive_the_signal();
	own = access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1);
	if (own.ending == MOCK_DONE_SPARSE)
		wait_for_signals(1);
	kill(owner, SIGKILL);
	waitpid(owner, &status, 0);
	EXPECT(scene, got == sizeof(done), "the child ended without a word");
	EXPECT_ACCESS(scene, done, MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, own, MOCK_DONE_SPARSE);
	EXPECT(scene, signals_seen() == 1, "%u signals to the other client", signals_seen());
	EXPECT(scene, WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "wait status 0x%x", status);
}

static void no_signal_by_choice(struct scene *scene)
{
	int status;

	EXPECT(scene, set_parameter("uvm_fault_isolation_signal", 0), "no such parameter");
	survive_the_signal();
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	status = offend_in_a_process(scene->tsg, false);
	EXPECT(scene, WIFEXITED(status) && WEXITSTATUS(status) == 2, "wait status 0x%x", status);
	EXPECT(scene, signals_seen() == 0, "%u signals", signals_seen());
}

static void no_agent(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_TSG_DEAD);
}

static void no_agent_by_choice(struct scene *scene)
{
	EXPECT(scene, set_parameter("uvm_fault_isolation_without_agent", 1), "no such parameter");
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
}

static void agent_leaves(struct scene *scene)
{
	int agent = become_agent();

	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	close(agent);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA + GIB, 1), MOCK_DONE_SPARSE);
}

static void agent_has_left(struct scene *scene)
{
	close(become_agent());
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_TSG_DEAD);
}

/* In both the heir ends before anything is judged: it has the neighbour's pipe open, and would keep it waiting. */
static void owner_ended_before(struct scene *scene)
{
	const char *nameless[] = { " pid=0 start=0 alive=0 ", "" };
	struct recycled made = recycle(scene->tsg, 5, false);
	char uevent[2048] = "", record[400];
	int events = listen_to_uevents();
	struct mock_access done = access_as(&made.client, MOCK_WRITE, WILD_VA, 1);

	if (done.ending == MOCK_DONE_SPARSE)
		next_report(events, uevent, sizeof(uevent));
	close(events);
	find_record(record, sizeof(record), nameless);
	end_recycled(&made);
	EXPECT_ACCESS(scene, done, MOCK_DONE_SPARSE);
	EXPECT(scene, made.heir.pid == made.owner.pid && made.heir.start != made.owner.start, "no pid was used again");
	EXPECT(scene, strstr(uevent, " PID=0 START=0 ALIVE=0 "), "it names a process: %s", uevent);
	EXPECT(scene, record[0], "the list names a process");
}

static void owner_ended_since(struct scene *scene)
{
	char record[400], owner[80];
	const char *wanted[] = { owner, "" };
	struct recycled made = recycle(scene->tsg, 5, true);

	snprintf(owner, sizeof(owner), " pid=%d start=%llu alive=1 ", made.owner.pid, made.owner.start);
	find_record(record, sizeof(record), wanted);
	end_recycled(&made);
	EXPECT(scene, made.ending == MOCK_DONE_SPARSE, "the access ended %u", made.ending);
	EXPECT(scene, made.heir.pid == made.owner.pid && made.heir.start != made.owner.start, "no pid was used again");
	EXPECT(scene, record[0], "the list does not name the one that did it");
}

const struct test_case report_cases[] = {
	{ "the tools queue tells of a contained fault, once", CONTAINED, tools_event },
	{ "a uevent says which process and what, and not where", CONTAINED, uevent },
	{ "one uevent a client", CONTAINED, one_uevent_a_client },
	{ "the list says which process, where and what", CONTAINED, record },
	{ "the list has a client that is gone", CONTAINED, record_outlives_the_client },
	{ "the list is for root alone", CONTAINED, list_is_for_root },
	{ "the list is for root of the machine", CONTAINED, list_is_for_root_of_the_machine },
	{ "the client gets a signal, once", CONTAINED, signal_to_the_client },
	{ "the signal ends a client that has no use for it", CONTAINED, signal_ends_the_client },
	{ "no signal to a program that the owner has executed since", CONTAINED, no_signal_after_an_exec },
	{ "no signal, by choice", CONTAINED, no_signal_by_choice },
	{ "no agent: cancelled as with the stock module", ALWAYS, no_agent, .ends_tsg = true, .unheard = true },
	{ "no agent, by choice: contained", CONTAINED, no_agent_by_choice, .unheard = true },
	{ "an agent leaves: a poisoned client stays contained", CONTAINED, agent_leaves, .unheard = true },
	{ "an agent has left: cancelled as with the stock module", ALWAYS, agent_has_left, .ends_tsg = true,
	  .unheard = true },
	{ "an owner that ended before is not named, nor is its pid", CONTAINED, owner_ended_before },
	{ "an owner that ended since is named, and no heir of its pid", CONTAINED, owner_ended_since },
	{ 0 },
};
