// SPDX-License-Identifier: MIT OR GPL-2.0
/* A fault while something else goes on: the same range is being mapped, the GPU is being given up. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "case.h"
#include "reports.h"

#define WILD_VA 0x7fff12345000ULL
#define RANGE_VA 0x400000000ULL
#define MANAGED_VA 0x7d0000000000ULL
#define PATIENCE 30000	/* turns of 1 ms */
/* Of a service that must not wait for RM; on a loaded host, without KVM. */
#define SERVICE_MS 20000
#define LISTENERS 3000
#define OTHERS 32

static void pause_1ms(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

struct mapper {
	struct client *client;
	unsigned int memory;
	unsigned int status;
};

static void *map_slowly(void *argument)
{
	struct mapper *mapper = argument;

	mapper->status = try_map(mapper->client, RANGE_VA + 4 * MIB, 64 * KIB, mapper->memory, UvmGpuMappingTypeDefault);
	return NULL;
}

static void fault_in_range(struct scene *scene)
{
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + 6 * MIB, 1), MOCK_DONE_SPARSE);
}

static void *fault_meanwhile(void *scene)
{
	fault_in_range(scene);
	return NULL;
}

/* All share the bottom half: if it waited for the range's lock, held by one that waits for RM, it would serve none. */
static void mapping_waits_for_rm(struct scene *scene)
{
	struct client other = open_client(scene->tsg, 2);
	volatile uint64_t *managed = try_managed(&other, MANAGED_VA, 2 * MIB);
	struct mapper mapper = { .client = &scene->suspect, .memory = new_memory(&scene->suspect, 64 * KIB, 64 * KIB, false) };
	unsigned long long faults = statistics(scene->tsg).faults;
	struct mock_access served = { .ending = MOCK_TIMEOUT };
	pthread_t mapping, faulting;
	unsigned int turn;

	EXPECT(scene, try_range(&scene->suspect, RANGE_VA, 8 * MIB) == NV_OK, "no range");
	EXPECT(scene, managed == (void *)MANAGED_VA, "no managed memory");
	managed[0] = 1;
	stall_rm(&scene->suspect, true);
	if (pthread_create(&mapping, NULL, map_slowly, &mapper))
		die("start a thread");
	for (turn = 0; turn < PATIENCE && !stall_rm(&scene->suspect, true); turn++)
		pause_1ms();
	if (pthread_create(&faulting, NULL, fault_meanwhile, scene))
		die("start a thread");
	/* The second fault is that of the replay before it is decided what to do: nothing else is serviced from here on. */
	while (turn++ < PATIENCE && statistics(scene->tsg).faults < faults + 2)
		pause_1ms();
	served = access_full(&other, (struct mock_access){ .kind = MOCK_ATOMIC, .va = MANAGED_VA, .value = 1,
							   .deadline_ms = SERVICE_MS });
	stall_rm(&scene->suspect, false);
	pthread_join(mapping, NULL);
	pthread_join(faulting, NULL);
	EXPECT(scene, turn < PATIENCE, "the mapping did not wait for RM, or there was no fault");
	if (scene->failed)
		return;
	EXPECT_ACCESS(scene, served, MOCK_DONE);
	EXPECT(scene, mapper.status == NV_OK, "the mapping was begun before the fault, and refused: 0x%x", mapper.status);
	close_client(&other);
}

/* RM never comes back: the fault waits for so long, its client is stopped if it can be, and at last it is cancelled. */
static void mapping_waits_for_ever(struct scene *scene)
{
	struct mapper mapper = { .client = &scene->suspect, .memory = new_memory(&scene->suspect, 64 * KIB, 64 * KIB, false) };
	struct mock_access ended;
	pthread_t mapping;
	unsigned int turn;

	/* The stock module has neither, and waits for nothing. */
	set_parameter("uvm_fault_isolation_wait_ms", 200);
	set_parameter("uvm_fault_isolation_stop_ms", 500);
	EXPECT(scene, try_range(&scene->suspect, RANGE_VA, 8 * MIB) == NV_OK, "no range");
	stall_rm(&scene->suspect, true);
	if (pthread_create(&mapping, NULL, map_slowly, &mapper))
		die("start a thread");
	for (turn = 0; turn < PATIENCE && !stall_rm(&scene->suspect, true); turn++)
		pause_1ms();
	ended = access_as(&scene->suspect, MOCK_WRITE, RANGE_VA + 6 * MIB, 1);
	stall_rm(&scene->suspect, false);
	pthread_join(mapping, NULL);
	EXPECT_ACCESS(scene, ended, MOCK_TSG_DEAD);
}

/* Each listener to uevents costs the sender: with so many of them a report takes its time. */
static void listen_with_many(void)
{
	struct rlimit limit = { .rlim_cur = LISTENERS + 1000, .rlim_max = LISTENERS + 1000 };
	unsigned int i;

	if (setrlimit(RLIMIT_NOFILE, &limit))
		die("raise the number of descriptors");
	for (i = 0; i < LISTENERS; i++)
		listen_to_uevents();
}

/*
 * Reports of others go before that of the suspect, one after the other, and meanwhile all give the GPU up: it is taken
 * apart before the suspect's report runs.
 */
static void gpu_is_given_up_before_the_report(struct scene *scene)
{
	struct client others[OTHERS];
	char text[2048] = "-";
	int events = listen_to_uevents();
	unsigned int i, status = NV_OK;

	listen_with_many();
	for (i = 0; i < OTHERS; i++)
		others[i] = open_client(scene->tsg, i + 1);
	for (i = 0; i < OTHERS; i++)
		EXPECT_ACCESS(scene, access_as(&others[i], MOCK_WRITE, i * GIB, 1), MOCK_DONE_SPARSE);
	EXPECT_ACCESS(scene, access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1), MOCK_DONE_SPARSE);
	for (i = 0; i < OTHERS; i++)
		status |= try_unregister_gpu(&others[i]);
	status |= try_unregister_gpu(&scene->suspect);
	EXPECT(scene, status == NV_OK, "the GPU was not unregistered: 0x%x", status);
	while (text[0] && !strstr(text, " VEID=0 "))
		next_report(events, text, sizeof(text));
	EXPECT(scene, strstr(text, " GPU=GPU-6d6f636b-2d67-7075-0001-020304050607 "), "the uevent does not name the GPU: %s",
	       text);
}

const struct test_case race_cases[] = {
	{ "fault in a range that is being mapped, RM takes its time", CONTAINED, mapping_waits_for_rm },
	{ "fault in a range that is being mapped, RM never comes back", ALWAYS, mapping_waits_for_ever, .ends_tsg = true },
	{ "the GPU is given up before its fault is reported", CONTAINED, gpu_is_given_up_before_the_report, .alone = true,
	  .last_user = true },
	{ 0 },
};
