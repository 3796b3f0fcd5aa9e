/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* How contained faults are told: the list of nvidia-uvm, its uevents, its signal. */
#ifndef REPORTS_H
#define REPORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define FAULT_LIST "/proc/driver/nvidia-uvm/contained_faults"

/* Hold the list open from here on; -1 with the stock module, which has none. Not to be left to a program that is run. */
int become_agent(void);

/* A client that goes on with its signal: the signal is counted, here and in children from here on. */
void survive_the_signal(void);
unsigned int signals_seen(void);

/* The newest line of the list with all of these texts, up to an empty one; an empty text if there is none. */
void find_record(char *text, size_t size, const char *const *wanted);

/* Field 22 of /proc/PID/stat. */
unsigned long long start_of(pid_t pid);

/* Uevents: a socket that hears them, and the next one of a contained fault, its NULs made blanks; empty if none comes. */
int listen_to_uevents(void);
void next_report(int fd, char *text, size_t size);

#endif
