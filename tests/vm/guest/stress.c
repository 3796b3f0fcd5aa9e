// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * stress FAULTS SEED: random accesses of eight offenders in two TSGs, with ranges and mappings made and taken away
 * meanwhile and offenders killed at any moment, until so many faults were contained, or a deadline has passed: to get
 * more starts it again with another seed. In each TSG an innocent client works on its own memory; it must live and find
 * what it wrote. One JSON line at the end; exit status 0 if all is well.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "uvm_test_ioctl.h"
#include "client.h"
#include "reports.h"

#define GROUPS 2
#define OFFENDERS 8
#define INNOCENT_VEID 63
#define FIRST_TSG 2000
#define RANGE_VA 0x400000000ULL
#define MANAGED_VA 0x7c0000000000ULL
/* By what they have done, or on a loaded host all would be killed before they did any harm; and now and then by time. */
#define KILL_EVERY_ACCESSES 8
#define KILL_EVERY_MS 1500
#define DEADLINE_S 1200

/* Between all processes. */
struct shared {
	unsigned long contained, accesses, refused, mapped, killed, restarted, innocent_rounds, by_copy_engine;
	unsigned int trouble;
	char why[200];
};

static struct shared *shared;
static uint64_t random_state;

static uint64_t random_number(void)	/* xorshift64*, of S. Vigna */
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return random_state * 0x2545f4914f6cdd1dULL;
}

static void count(unsigned long *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static void complain(const char *what, uint64_t detail)
{
	if (!__atomic_exchange_n(&shared->trouble, 1, __ATOMIC_SEQ_CST))
		snprintf(shared->why, sizeof(shared->why), "%s (0x%llx)", what, (unsigned long long)detail);
}

static uint64_t random_address(void)
{
	switch (random_number() % 6) {
	case 0:
		return random_number() % (64 * KIB);
	case 1:
		return RANGE_VA + random_number() % (64 * MIB);
	case 2:
		return MANAGED_VA + 8 * MIB + random_number() % (64 * MIB);
	case 3:
		return random_number() % (4 * GIB);
	default:
		return random_number() % (1ULL << 47);
	}
}

static void access_at_random(const struct client *client)
{
	struct mock_access wanted = {
		.kind = (unsigned int)(random_number() % 4), .va = random_address() & ~7ULL, .value = random_number(),
		.copy_engine = random_number() % 5 == 0
	};
	struct mock_access done;

	if (wanted.copy_engine && wanted.kind >= MOCK_ATOMIC)
		wanted.kind = MOCK_WRITE;
	done = access_full(client, wanted);
	count(&shared->accesses);
	if (done.ending == MOCK_TSG_DEAD || done.ending == MOCK_TIMEOUT)
		complain(done.ending == MOCK_TIMEOUT ? "an access was never served" : "a group died", wanted.va);
	if (done.faults && done.ending == MOCK_DONE_SPARSE) {
		count(&shared->contained);
		if (wanted.copy_engine)
			count(&shared->by_copy_engine);
	}
}

/* Ranges of 4 KiB to 2 MiB, some mapped, some not; a poisoned VA space refuses them, which is right. */
static void change_ranges(const struct client *client)
{
	static const uint64_t pages[] = { 4 * KIB, 64 * KIB, 2 * MIB };
	uint64_t page = pages[random_number() % 3], base = RANGE_VA + (random_number() % 64) * MIB / page * page;
	UvmGpuMappingType type = (UvmGpuMappingType)(random_number() % 4);

	switch (random_number() % 4) {
	case 0:
		if (try_range(client, base, page) != NV_OK)
			count(&shared->refused);
		else if (try_map(client, base, page, new_memory(client, page, page, false), type) == NV_OK)
			count(&shared->mapped);
		break;
	case 1:
		try_unmap(client, base, page);
		break;
	case 2:
		try_free(client, base, page);
		break;
	default:
		if (try_managed(client, MANAGED_VA + (random_number() % 16) * MIB, 256 * KIB) == MAP_FAILED)
			count(&shared->refused);
	}
}

_Noreturn static void offend(unsigned int tsg, unsigned int veid, uint64_t seed)
{
	struct client client = open_client(tsg, veid);
	unsigned int i, rounds;

	random_state = seed | 1;
	rounds = 50 + random_number() % 400;
	for (i = 0; i < rounds; i++) {
		/* Some live a while as good clients. */
		if (i < 20 || random_number() % 8 == 0)
			change_ranges(&client);
		else
			access_at_random(&client);
	}
	if (random_number() % 2)
		close_client(&client);
	_exit(0);
}

static void pause_ms(long ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

_Noreturn static void work(unsigned int tsg)
{
	struct client client = open_client(tsg, INNOCENT_VEID);
	volatile uint64_t *managed = try_managed(&client, MANAGED_VA, 2 * MIB);
	uint64_t round;

	map_new(&client, RANGE_VA, 4 * MIB, 64 * KIB, 64 * KIB, UvmGpuMappingTypeDefault);
	for (round = 1;; round++) {
		struct mock_access wrote = access_as(&client, MOCK_WRITE, RANGE_VA + round % 8192 * 8, round);
		struct mock_access got = access_as(&client, MOCK_READ, RANGE_VA + round % 8192 * 8, 0);
		uint64_t at = round % 512 * 512;

		if (wrote.ending != MOCK_DONE || got.ending != MOCK_DONE || got.value != round)
			complain("an innocent lost its memory", wrote.ending);
		managed[at] = round;	/* so that the next access of the GPU faults, and is serviced */
		got = access_as(&client, MOCK_ATOMIC, MANAGED_VA + at * 8, 1);
		if (got.ending != MOCK_DONE || managed[at] != round + 1)
			complain("an innocent lost its managed memory", got.ending);
		count(&shared->innocent_rounds);
		pause_ms(1);	/* the offenders are to have most of the machine */
	}
}

static pid_t start_offender(unsigned int slot)
{
	/* VEIDs in turn, so that none is used again while its last client is being taken apart. */
	static unsigned int next[OFFENDERS];
	unsigned int group = slot % GROUPS, places = (INNOCENT_VEID - 1) / (OFFENDERS / GROUPS);
	unsigned int veid = 1 + slot / GROUPS * places + next[slot]++ % places;
	uint64_t seed = random_number();
	pid_t pid = fork();

	if (pid == 0)
		offend(FIRST_TSG + group, veid, seed);
	return pid;
}

static void kill_one(const pid_t *offenders)
{
	kill(offenders[random_number() % OFFENDERS], SIGKILL);
	count(&shared->killed);
}

static void keep_offending(unsigned long wanted)
{
	unsigned long next_kill = KILL_EVERY_ACCESSES;
	pid_t offenders[OFFENDERS] = { 0 };
	time_t end = time(NULL) + DEADLINE_S;
	unsigned int slot, turn;

	for (slot = 0; slot < OFFENDERS; slot++)
		offenders[slot] = start_offender(slot);
	for (turn = 0; __atomic_load_n(&shared->contained, __ATOMIC_RELAXED) < wanted && !shared->trouble; turn++) {
		if (time(NULL) > end)
			break;
		pause_ms(10);
		if (turn % (KILL_EVERY_MS / 10) == 0)
			kill_one(offenders);
		for (; __atomic_load_n(&shared->accesses, __ATOMIC_RELAXED) >= next_kill; next_kill += 1 + random_number() %
		     (2 * KILL_EVERY_ACCESSES))
			kill_one(offenders);
		for (slot = 0; slot < OFFENDERS; slot++) {
			int status;

			if (waitpid(offenders[slot], &status, WNOHANG) != offenders[slot])
				continue;
			if (!WIFSIGNALED(status) && WEXITSTATUS(status))
				complain("an offender could not be set up", (uint64_t)status);
			offenders[slot] = start_offender(slot);
			count(&shared->restarted);
		}
	}
	for (slot = 0; slot < OFFENDERS; slot++)
		kill(offenders[slot], SIGKILL);
	for (slot = 0; slot < OFFENDERS; slot++)
		waitpid(offenders[slot], NULL, 0);
}

/* UVM keeps free pieces of video memory for its next need; NVIDIA's own tests have a way to make it give them back. */
static void give_cache_back(const struct client *client)
{
	static const unsigned char uuid[16] = MOCK_GPU_UUID;
	UVM_TEST_PMM_RELEASE_FREE_ROOT_CHUNKS_PARAMS parameters = { 0 };

	memcpy(parameters.gpu_uuid.uuid, uuid, sizeof(uuid));
	if (ioctl(client->uvm, UVM_TEST_PMM_RELEASE_FREE_ROOT_CHUNKS, &parameters) || parameters.rmStatus)
		complain("UVM's cache cannot be emptied: uvm_enable_builtin_tests=1 is needed", parameters.rmStatus);
}

/* The driver takes a VA space apart after its process is gone, in part. */
static bool settles_at(const struct client *keeper, const struct mock_statistics *before, struct mock_statistics *after)
{
	unsigned int i;

	for (i = 0; i < 500; i++) {
		give_cache_back(keeper);
		*after = statistics(FIRST_TSG);
		if (after->chunks_used <= before->chunks_used && after->channels == before->channels &&
		    after->address_spaces == before->address_spaces && after->accesses == 0 &&
		    after->rm_allocations <= before->rm_allocations)
			return true;
		pause_ms(10);
	}
	return false;
}

int main(int argc, char **argv)
{
	struct mock_statistics before, after;
	struct client keeper;
	pid_t innocents[GROUPS];
	unsigned int group;

	if (argc != 3) {
		fprintf(stderr, "usage: stress FAULTS SEED\n");
		return 2;
	}
	random_state = strtoull(argv[2], NULL, 0) * 0x9e3779b97f4a7c15ULL | 1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("share memory");
	make_device_nodes();
	(void)become_agent();
	/* An offender goes on: it is to fault more than once. */
	signal(SIGBUS, SIG_IGN);
	keeper = open_client(0, 0);
	give_cache_back(&keeper);
	before = statistics(FIRST_TSG);
	for (group = 0; group < GROUPS; group++) {
		innocents[group] = fork();
		if (innocents[group] == 0)
			work(FIRST_TSG + group);
	}
	keep_offending(strtoul(argv[1], NULL, 0));
	for (group = 0; group < GROUPS; group++) {
		if (waitpid(innocents[group], NULL, WNOHANG) != 0)
			complain("an innocent ended", group);
		if (statistics(FIRST_TSG + group).tsg_dead)
			complain("a group is dead", group);
		kill(innocents[group], SIGKILL);
		waitpid(innocents[group], NULL, 0);
	}
	if (!settles_at(&keeper, &before, &after))
		complain("something was not given back", after.chunks_used);
	close_client(&keeper);
	printf("{\"ok\": %s, \"why\": \"%s\", \"contained\": %lu, \"by_copy_engine\": %lu, \"accesses\": %lu, "
	       "\"innocent_rounds\": %lu, \"mapped\": %lu, \"refused\": %lu, \"killed\": %lu, \"restarted\": %lu, "
	       "\"chunks_before\": %llu, \"chunks_after\": %llu, \"rm_before\": %llu, \"rm_after\": %llu, "
	       "\"spaces_before\": %llu, \"spaces_after\": %llu, \"channels_before\": %llu, \"channels_after\": %llu}\n",
	       shared->trouble ? "false" : "true", shared->why, shared->contained, shared->by_copy_engine,
	       shared->accesses, shared->innocent_rounds, shared->mapped, shared->refused, shared->killed,
	       shared->restarted, before.chunks_used, after.chunks_used, before.rm_allocations, after.rm_allocations,
	       before.address_spaces, after.address_spaces, before.channels, after.channels);
	return shared->trouble ? 1 : 0;
}
