// SPDX-License-Identifier: MIT OR GPL-2.0
/* Several that fault at once: each is contained and named in its turn, and one that does nothing wrong goes on. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "case.h"
#include "reports.h"

#define TIB (1024ULL * GIB)
#define OFFENDERS 3
#define FIRST_VEID 2
/* Replays from a fault to its containment: what is counted does not depend on how fast the host is. */
#define MOST_REPLAYS 40

struct offender {
	pthread_t thread;
	struct client client;
	struct mock_burst burst;
};

static void *storm(void *argument)
{
	struct offender *offender = argument;

	offender->burst = access_many(&offender->client, offender->burst);
	return NULL;
}

static void start_storm(struct offender *offender, unsigned int tsg, unsigned int veid)
{
	offender->client = open_client(tsg, veid);
	offender->burst = (struct mock_burst){ .kind = MOCK_WRITE, .va = veid * TIB, .seed = veid, .span = 256 * GIB,
					       .count = 1500, .in_flight = 256 };
	if (pthread_create(&offender->thread, NULL, storm, offender))
		die("start a thread");
}

static bool has_begun(const struct offender *offender, unsigned long long faults)
{
	return statistics(offender->client.tsg).faults >= faults;
}

static void end_storm(struct scene *scene, struct offender *offender)
{
	pthread_join(offender->thread, NULL);
	close_client(&offender->client);
	EXPECT(scene, scene->failed || offender->burst.endings[MOCK_DONE_SPARSE] == offender->burst.count,
	       "of a storm %llu of %llu are contained, %llu dead", offender->burst.endings[MOCK_DONE_SPARSE],
	       offender->burst.count, offender->burst.endings[MOCK_TSG_DEAD]);
}

static void first_fault(struct scene *scene, const struct client *client)
{
	unsigned long long before = statistics(scene->tsg).replays, after;

	EXPECT_ACCESS(scene, access_as(client, MOCK_WRITE, 0x10, 1), MOCK_DONE_SPARSE);
	after = statistics(scene->tsg).replays;
	EXPECT(scene, after - before <= MOST_REPLAYS, "it took %llu replays", after - before);
}

/* Whether the one that storms was set up before or after: their order in memory must not decide. */
static void beside_a_storm(struct scene *scene, unsigned int storms)
{
	struct offender offenders[2 * OFFENDERS];
	unsigned long long faults = statistics(scene->tsg).faults;
	struct client early = open_client(scene->tsg, 40), late;
	unsigned int i;

	for (i = 0; i < storms; i++)
		start_storm(&offenders[i], scene->tsg, FIRST_VEID + i);
	late = open_client(scene->tsg, 41);
	while (!has_begun(&offenders[0], faults + 256))
		usleep(500);
	first_fault(scene, &early);
	if (!scene->failed)
		first_fault(scene, &late);
	for (i = 0; i < storms; i++)
		end_storm(scene, &offenders[i]);
	close_client(&early);
	close_client(&late);
}

static void beside_one_storm(struct scene *scene)
{
	beside_a_storm(scene, 1);
}

static void beside_three_storms(struct scene *scene)
{
	beside_a_storm(scene, OFFENDERS);
}

/* Each is named by a uevent of its own, though all belong to one process here: by its address. */
static void each_is_named(struct scene *scene)
{
	struct offender offenders[OFFENDERS];
	bool named[OFFENDERS] = { false };
	int events = listen_to_uevents();
	unsigned int i, found;
	char text[2048];

	for (i = 0; i < OFFENDERS; i++)
		start_storm(&offenders[i], scene->tsg, FIRST_VEID + i);
	for (i = 0; i < OFFENDERS; i++)
		end_storm(scene, &offenders[i]);
	/* Where none is contained none is named: a wait for that would take its whole deadline. */
	for (found = 0; found < OFFENDERS && !scene->failed; found++) {
		const char *veid;

		next_report(events, text, sizeof(text));
		veid = strstr(text, " VEID=");
		if (!veid)
			break;
		i = (unsigned int)atoi(veid + 6) - FIRST_VEID;
		if (i < OFFENDERS)
			named[i] = true;
	}
	close(events);
	for (i = 0; i < OFFENDERS; i++)
		EXPECT(scene, scene->failed || named[i], "offender %u is not named", i);
}

const struct test_case storm_cases[] = {
	{ "a first fault beside one client that storms", CONTAINED, beside_one_storm },
	{ "a first fault beside three clients that storm", CONTAINED, beside_three_storms },
	{ "three storm at once, each is named", CONTAINED, each_is_named },
	{ 0 },
};
