// SPDX-License-Identifier: MIT OR GPL-2.0
/* A fault while something else goes on: the same range is being mapped, the GPU is being given up. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "case.h"

#define WILD_VA 0x7fff12345000ULL
#define RANGE_VA 0x400000000ULL
#define MANAGED_VA 0x7d0000000000ULL
#define POLICY_ALWAYS 2
#define PATIENCE 30000	/* turns of 1 ms */
/* Of a service that must not wait for RM; on a loaded host, without KVM. */
#define SERVICE_MS 20000
#define HOG_PRIORITY 50
#define GLOBAL_QUEUE "UVM global queu"	/* as much of its name as the kernel keeps */

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

/* The bottom half is one for all: if it waited for the range's lock, whose holder waits for RM, it would serve nobody. */
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

static void set_priority(pid_t pid, int policy, int priority)
{
	if (sched_setscheduler(pid, policy, &(struct sched_param){ .sched_priority = priority }))
		die("set a priority");
}

static void keep_on(pid_t pid, int processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	if (sched_setaffinity(pid, sizeof(set), &set))
		die("bind to a processor");
}

/* The global queue alone is to wait; what else runs on processor 1 goes before the hog. Gives how often it was found. */
static unsigned int arrange_kernel_threads(bool for_hog)
{
	struct dirent *entry;
	char path[300], comm[32];
	DIR *directory = opendir("/proc");
	unsigned int found = 0;

	while (directory && (entry = readdir(directory))) {
		pid_t pid = atoi(entry->d_name);
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/comm", pid);
		file = pid ? fopen(path, "r") : NULL;
		if (!file)
			continue;
		if (!fgets(comm, sizeof(comm), file))
			comm[0] = 0;
		fclose(file);
		if (!strncmp(comm, GLOBAL_QUEUE, strlen(GLOBAL_QUEUE))) {
			keep_on(pid, 1);
			found++;
		} else if (!strncmp(comm, "UVM", 3) || !strncmp(comm, "mock-gpu", 8)) {
			keep_on(pid, 0);
		} else if (!strncmp(comm, "kworker/1:", 10)) {
			set_priority(pid, for_hog ? SCHED_FIFO : SCHED_OTHER, for_hog ? HOG_PRIORITY + 1 : 0);
		}
	}
	closedir(directory);
	return found;
}

/* Takes what is left of processor 1, and says so. */
static pid_t start_hog(volatile int *running)
{
	pid_t pid = fork();

	if (pid == 0) {
		keep_on(0, 1);
		set_priority(0, SCHED_FIFO, HOG_PRIORITY);
		*running = 1;
		for (;;)
			__asm__ volatile("pause");
	}
	return pid;
}

static void let_real_time_run(const char *limit)
{
	FILE *file = fopen("/proc/sys/kernel/sched_rt_runtime_us", "w");

	if (!file || fputs(limit, file) < 0 || fclose(file))
		die("lift the limit of real time");
}

/* The report is kept from running until the GPU that it is about is gone. */
static void gpu_is_given_up_before_the_report(struct scene *scene)
{
	volatile int *running = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int events = listen_to_uevents();
	struct mock_access wild;
	unsigned int status;
	char text[2048];
	pid_t hog;

	EXPECT(scene, set_parameter("uvm_fault_isolation", POLICY_ALWAYS), "no such parameter");
	EXPECT(scene, arrange_kernel_threads(true) == 1, "not one thread called " GLOBAL_QUEUE);
	keep_on(0, 0);
	let_real_time_run("-1");
	hog = start_hog(running);
	while (!*running)
		pause_1ms();
	wild = access_as(&scene->suspect, MOCK_WRITE, WILD_VA, 1);
	status = try_unregister_gpu(&scene->suspect);
	kill(hog, SIGKILL);
	waitpid(hog, NULL, 0);
	let_real_time_run("950000");
	arrange_kernel_threads(false);
	EXPECT_ACCESS(scene, wild, MOCK_DONE_SPARSE);
	EXPECT(scene, status == NV_OK, "the GPU was not unregistered: 0x%x", status);
	next_report(events, text, sizeof(text));
	close(events);
	EXPECT(scene, strstr(text, " GPU=GPU-6d6f636b-2d67-7075-0001-020304050607 "), "the uevent does not name the GPU: %s",
	       text);
}

const struct test_case race_cases[] = {
	{ "fault in a range that is being mapped, RM takes its time", CONTAINED, mapping_waits_for_rm },
	{ "the GPU is given up before its fault is reported", CONTAINED, gpu_is_given_up_before_the_report, .alone = true,
	  .last_user = true },
	{ 0 },
};
