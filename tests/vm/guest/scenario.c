// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs every case, one after the other; one JSON line for each:
 *   {"case": NAME, "contained": BOOL, "ok": BOOL, "why": TEXT, "ms": NUMBER}
 * `contained` says that the stock module must fail it, `ms` how long it took. Exit status 0 if all ran, whatever they gave.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "case.h"
#include "reports.h"

#define CASE_SECONDS 240
#define NEIGHBOUR_VA 0x500000000ULL
#define FIRST_TSG 1

struct neighbour {
	pid_t pid;
	int ask, answer;
};

/* The innocent one: writes to its own memory whenever it is asked to. */
static struct neighbour start_neighbour(unsigned int tsg)
{
	struct neighbour neighbour;
	int ask[2], answer[2];
	char word;

	if (pipe(ask) || pipe(answer))
		die("make a pipe");
	neighbour = (struct neighbour){ .pid = fork(), .ask = ask[1], .answer = answer[0] };
	if (neighbour.pid == 0) {
		struct client client = open_client(tsg, 1);
		uint64_t count = 0;

		close(ask[1]);
		map_new(&client, NEIGHBOUR_VA, 4 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
		if (write(answer[1], "r", 1) != 1)
			_exit(1);
		while (read(ask[0], &word, 1) == 1) {
			struct mock_access wrote = access_as(&client, MOCK_WRITE, NEIGHBOUR_VA, ++count);
			struct mock_access got = access_as(&client, MOCK_READ, NEIGHBOUR_VA, 0);
			bool fine = wrote.ending == MOCK_DONE && got.ending == MOCK_DONE && got.value == count;

			if (write(answer[1], fine ? "y" : "n", 1) != 1)
				break;
		}
		_exit(0);
	}
	close(ask[0]);
	close(answer[1]);
	if (read(neighbour.answer, &word, 1) != 1)
		die("start a neighbour");
	return neighbour;
}

static bool is_well(const struct neighbour *neighbour)
{
	char word = 0;

	return write(neighbour->ask, "?", 1) == 1 && read(neighbour->answer, &word, 1) == 1 && word == 'y';
}

static void judge(struct scene *scene, const struct test_case *test, const struct neighbour *neighbour)
{
	bool dead = statistics(scene->tsg).tsg_dead;

	EXPECT(scene, !test->ends_tsg || dead, "the group lives");
	EXPECT(scene, test->ends_tsg || !dead, "the group is dead");
	EXPECT(scene, test->ends_tsg || !neighbour || is_well(neighbour), "the neighbour is not well");
}

static void run_case(const struct test_case *test, unsigned int tsg, int result)
{
	struct neighbour neighbour = { 0 };
	struct scene scene = { .tsg = tsg };

	alarm(CASE_SECONDS);
	if (!test->alone)
		neighbour = start_neighbour(tsg);
	scene.suspect = open_client(tsg, 0);
	if (!test->alone && !is_well(&neighbour)) {
		scene.failed = true;
		snprintf(scene.why, sizeof(scene.why), "the neighbour was not well before");
	}
	if (!scene.failed)
		test->run(&scene);
	if (!scene.failed)
		judge(&scene, test, test->alone ? NULL : &neighbour);
	if (scene.suspect.uvm >= 0)
		close_client(&scene.suspect);
	/* Its end must not hurt the neighbour either. */
	if (!scene.failed)
		judge(&scene, test, test->alone ? NULL : &neighbour);
	if (!test->alone) {
		close(neighbour.ask);
		waitpid(neighbour.pid, NULL, 0);
	}
	if (write(result, &scene, sizeof(scene)) != sizeof(scene))
		_exit(2);
	_exit(0);
}

static void put_text(const char *text)
{
	for (; *text; text++)
		if (*text >= ' ' && *text != '"' && *text != '\\')
			putchar(*text);
}

static void report(const struct test_case *test, const struct scene *scene, long ms)
{
	printf("{\"case\": \"");
	put_text(test->name);
	printf("\", \"contained\": %s, \"ok\": %s, \"why\": \"", test->expected == CONTAINED ? "true" : "false",
	       scene->failed ? "false" : "true");
	put_text(scene->why);
	printf("\", \"ms\": %ld}\n", ms);
	fflush(stdout);
}

/* What a case may have changed; the stock module has none of it. */
static void restore_parameters(void)
{
	set_parameter("uvm_fault_isolation", 1);
	set_parameter("uvm_fault_isolation_max_sinks", 4096);
	set_parameter("uvm_fault_isolation_max_kib", 65536);
	set_parameter("uvm_fault_isolation_wait_ms", 2000);
	set_parameter("uvm_fault_isolation_stop_ms", 10000);
	set_parameter("uvm_fault_isolation_real_sink", 0);
	set_parameter("uvm_fault_isolation_signal", SIGBUS);
	set_parameter("uvm_fault_isolation_without_agent", 0);
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void start_case(const struct test_case *test, unsigned int tsg)
{
	struct scene scene = { .failed = true };
	long began = now_ms();
	int result[2], status = 0;
	ssize_t got;
	pid_t pid;

	if (pipe(result))
		die("make a pipe");
	pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		close(result[0]);
		run_case(test, tsg, result[1]);
	}
	setpgid(pid, pid);
	close(result[1]);
	got = read(result[0], &scene, sizeof(scene));
	waitpid(pid, &status, 0);
	kill(-pid, SIGKILL);	/* whatever it left behind */
	if (got != sizeof(scene)) {
		scene.failed = true;
		snprintf(scene.why, sizeof(scene.why), "the case ended without a result (wait status 0x%x)", status);
	}
	close(result[0]);
	restore_parameters();
	report(test, &scene, now_ms() - began);
}

/* Without arguments all cases; else those with one of the arguments in their name. */
static bool is_chosen(const struct test_case *test, int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++)
		if (strstr(test->name, argv[i]))
			return true;
	return argc < 2;
}

/* Processes of the case before, which have the list open too, can still be on their way out. */
static void leave(int agent)
{
	unsigned int turn;

	close(agent);
	for (turn = 0; turn < CASE_SECONDS * 100 && get_parameter("uvm_fault_isolation_agents") > 0; turn++)
		usleep(10000);
}

int main(int argc, char **argv)
{
	static const struct test_case *const groups[] = {
		memory_cases, hole_cases, address_cases, overrun_cases, block_cases, refusal_cases, policy_cases, report_cases,
		ending_cases, hmm_cases, storm_cases, race_cases
	};
	unsigned int group, i, tsg = FIRST_TSG;
	struct client keeper;
	int agent;
	bool hmm;

	if (argc == 2 && !strcmp(argv[1], STAY)) {
		signal(SIGBUS, SIG_DFL);
		if (write(STDOUT_FILENO, "r", 1) == 1)
			pause();
		return 1;
	}
	make_device_nodes();
	agent = become_agent();
	/* A case is not over when its client is told; those that look for the signal handle it. */
	signal(SIGBUS, SIG_IGN);
	/* Holds the GPU, or it would be set up anew for each case. */
	keeper = open_client(0, 0);
	hmm = has_hmm(&keeper);
	for (group = 0; group < sizeof(groups) / sizeof(groups[0]); group++)
		for (i = 0; groups[group][i].name; i++) {
			const struct test_case *test = &groups[group][i];

			if ((test->needs_hmm && !hmm) || !is_chosen(test, argc, argv))
				continue;
			if (test->last_user)
				close_client(&keeper);
			if (test->unheard && agent >= 0)
				leave(agent);
			start_case(test, tsg++);
			if (test->unheard && agent >= 0)
				agent = become_agent();
			if (test->last_user)
				keeper = open_client(0, 0);
		}
	close_client(&keeper);
	printf("{\"cases\": %u}\n", tsg - FIRST_TSG);
	return 0;
}
