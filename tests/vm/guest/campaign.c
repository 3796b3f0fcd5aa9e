// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * campaign OVERRUN_MIB POINTERS ACCESSES: what takes long. A loop past an array's end, 4 KiB a step; pointers at random over
 * 1 TiB; three that follow wild pointers at once, and an innocent client beside them. One JSON line a part; exit status
 * 0 if the group lives, and no more sinks were there than MOST_SINKS.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client.h"
#include "reports.h"

#define WILD_VA 0x10000000000ULL
#define OWN_VA 0x400000000ULL
#define TIB (1024ULL * GIB)
#define MOST_SINKS 600
#define OFFENDERS 3
#define FIRST_VEID 2
#define INNOCENT 40

struct runner {
	pthread_t thread;
	struct client client;
	struct mock_burst burst;
};

static bool failed;

/* When each offender's kernel began, and when it was named. */
static long began_ms[OFFENDERS], named_ms[OFFENDERS];

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void part(const char *name, unsigned int tsg, struct mock_burst wanted)
{
	struct client client = open_client(tsg, 1), neighbour = open_client(tsg, 2);
	long began = now_ms();
	struct mock_burst done = access_many(&client, wanted);
	long took = now_ms() - began, sinks = get_parameter("uvm_fault_isolation_sinks");
	long kib = get_parameter("uvm_fault_isolation_sinks_kib");
	bool alive = !statistics(tsg).tsg_dead && done.endings[MOCK_DONE_SPARSE] == done.count;

	printf("{\"part\": \"%s\", \"alive\": %s, \"accesses\": %llu, \"faults\": %llu, \"sinks\": %ld, \"kib\": %ld, "
	       "\"ms\": %ld}\n", name, alive ? "true" : "false", done.count, done.faults, sinks, kib, took);
	fflush(stdout);
	failed = failed || !alive || sinks > MOST_SINKS;
	close_client(&client);
	close_client(&neighbour);
}

/* The uevents of the offenders, as they come. */
static void *listen(void *events)
{
	unsigned int found, i;
	char text[2048];

	for (found = 0; found < OFFENDERS; found++) {
		const char *veid;

		next_report(*(int *)events, text, sizeof(text));
		veid = strstr(text, " VEID=");
		i = veid ? (unsigned int)atoi(veid + 6) - FIRST_VEID : OFFENDERS;
		if (i < OFFENDERS)
			named_ms[i] = now_ms();
	}
	return NULL;
}

static void *run(void *argument)
{
	struct runner *runner = argument;

	began_ms[runner->client.veid - FIRST_VEID] = now_ms();
	runner->burst = access_many(&runner->client, runner->burst);
	return NULL;
}

/* Wild ones, or, to compare with, three that make as many accesses to memory of their own. */
static unsigned long rounds_beside(unsigned int tsg, bool wild, uint64_t accesses, struct runner *runners)
{
	struct client innocent = open_client(tsg, INNOCENT);
	unsigned long rounds = 0;
	unsigned int i;
	long end;

	map_new(&innocent, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	for (i = 0; i < OFFENDERS; i++) {
		runners[i].client = open_client(tsg, FIRST_VEID + i);
		map_new(&runners[i].client, OWN_VA, 2 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
		runners[i].burst = wild ? (struct mock_burst){ .kind = MOCK_WRITE, .va = WILD_VA, .seed = 1 + i, .span = TIB,
							       .count = accesses, .in_flight = 64 }
					: (struct mock_burst){ .kind = MOCK_WRITE, .va = OWN_VA, .seed = 1 + i,
							       .span = 64 * KIB, .count = accesses, .in_flight = 64 };
		if (pthread_create(&runners[i].thread, NULL, run, &runners[i]))
			die("start a thread");
	}
	/* The same time in both: so long as one with faults takes. */
	for (end = now_ms() + 20000; now_ms() < end;) {
		struct mock_access wrote = access_as(&innocent, MOCK_WRITE, OWN_VA, ++rounds);
		struct mock_access got = access_as(&innocent, MOCK_READ, OWN_VA, 0);

		failed = failed || wrote.ending != MOCK_DONE || got.ending != MOCK_DONE || got.value != rounds;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	for (i = 0; i < OFFENDERS; i++) {
		pthread_join(runners[i].thread, NULL);
		close_client(&runners[i].client);
	}
	close_client(&innocent);
	return rounds;
}

static void offenders(unsigned int tsg, uint64_t accesses)
{
	struct runner runners[OFFENDERS];
	unsigned long calm = rounds_beside(tsg, false, accesses, runners), wild;
	unsigned long long contained = 0;
	int events = listen_to_uevents();
	unsigned int i, named = 0;
	pthread_t listener;
	long slowest = 0;

	if (pthread_create(&listener, NULL, listen, &events))
		die("start a thread");
	wild = rounds_beside(tsg, true, accesses, runners);
	pthread_join(listener, NULL);
	for (i = 0; i < OFFENDERS; i++) {
		long took = named_ms[i] - began_ms[i];

		contained += runners[i].burst.endings[MOCK_DONE_SPARSE];
		slowest = took > slowest ? took : slowest;
		named += named_ms[i] != 0;
	}
	printf("{\"part\": \"offenders\", \"alive\": %s, \"named\": %u, \"contained\": %llu, \"named_within_ms\": %ld, "
	       "\"rounds\": %lu, \"rounds_calm\": %lu}\n", statistics(tsg).tsg_dead ? "false" : "true", named, contained,
	       slowest, wild, calm);
	failed = failed || statistics(tsg).tsg_dead || named != OFFENDERS || contained != OFFENDERS * accesses;
}

int main(int argc, char **argv)
{
	struct client keeper;

	if (argc != 4) {
		fprintf(stderr, "usage: campaign OVERRUN_MIB POINTERS ACCESSES\n");
		return 2;
	}
	make_device_nodes();
	become_agent();
	signal(SIGBUS, SIG_IGN);
	keeper = open_client(0, 0);
	part("overrun", 1, (struct mock_burst){ .kind = MOCK_WRITE, .va = WILD_VA, .stride = 4 * KIB, .in_flight = 256,
						.count = strtoull(argv[1], NULL, 10) * MIB / (4 * KIB),
						.deadline_ms = 600000 });
	part("pointers", 2, (struct mock_burst){ .kind = MOCK_WRITE, .va = WILD_VA, .seed = 1, .span = TIB, .in_flight = 256,
						 .count = strtoull(argv[2], NULL, 10), .deadline_ms = 600000 });
	offenders(3, strtoull(argv[3], NULL, 10));
	close_client(&keeper);
	return failed ? 1 : 0;
}
