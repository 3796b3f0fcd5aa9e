/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A case: one client (the suspect, VEID 0) does something in a TSG that it shares with another (the neighbour, VEID 1,
 * a process of its own). Each case has a TSG of its own, so that none is decided by what went before.
 */
#ifndef CASE_H
#define CASE_H

#include <stddef.h>

#include "client.h"

enum expected {
	ALWAYS,		/* holds with the stock module as well */
	CONTAINED,	/* holds only if the fault is contained: the stock module must fail it */
};

struct scene {
	unsigned int tsg;
	struct client suspect;
	bool failed;
	char why[200];
};

struct test_case {
	const char *name;
	enum expected expected;
	void (*run)(struct scene *scene);
	bool alone;		/* no neighbour */
	bool ends_tsg;		/* the TSG is to die: what cannot or must not be contained */
	bool last_user;		/* no other process holds the GPU: it is taken apart when the suspect lets go of it */
	bool needs_hmm;		/* left out where the kernel has none */
	bool unheard;		/* no agent has the list of contained faults open */
};

/* As the only argument: say so on the standard output, and wait for a signal. */
#define STAY "--stay"

/* Note the first failure, and leave the case. */
#define EXPECT(scene, condition, ...)							\
	do {										\
		if (!(condition)) {							\
			(scene)->failed = true;						\
			snprintf((scene)->why, sizeof((scene)->why), __VA_ARGS__);	\
			return;								\
		}									\
	} while (0)

#define EXPECT_ACCESS(scene, access, wanted)								\
	do {												\
		struct mock_access got_ = (access);							\
		EXPECT(scene, got_.ending == (wanted), "%s: ended %u, wanted %u (faults %u, value 0x%llx)", \
		       #access, got_.ending, (unsigned int)(wanted), got_.faults, got_.value);		\
	} while (0)

extern const struct test_case memory_cases[], hole_cases[], refusal_cases[], policy_cases[], ending_cases[], race_cases[],
	hmm_cases[], overrun_cases[], address_cases[], storm_cases[], block_cases[], report_cases[];

/* All of a kernel's accesses end in a sink. */
#define EXPECT_BURST(scene, burst)									\
	do {												\
		struct mock_burst got_ = (burst);							\
		EXPECT(scene, got_.endings[MOCK_DONE_SPARSE] == got_.count,				\
		       "%s: %llu of %llu in a sink, %llu on memory, %llu dead, %llu late, %llu preempted", #burst, \
		       got_.endings[MOCK_DONE_SPARSE], got_.count, got_.endings[MOCK_DONE],		\
		       got_.endings[MOCK_TSG_DEAD], got_.endings[MOCK_TIMEOUT], got_.endings[MOCK_PREEMPTED]); \
	} while (0)

#endif
