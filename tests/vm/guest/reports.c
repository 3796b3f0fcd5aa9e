// SPDX-License-Identifier: MIT OR GPL-2.0
#define _GNU_SOURCE
#include "reports.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

#define PATIENCE_MS 60000

static volatile sig_atomic_t seen;

int become_agent(void)
{
	return open(FAULT_LIST, O_RDONLY | O_CLOEXEC);
}

static void note_signal(int number)
{
	(void)number;
	seen++;
}

void survive_the_signal(void)
{
	struct sigaction action = { .sa_handler = note_signal, .sa_flags = SA_RESTART };

	if (sigaction(SIGBUS, &action, NULL))
		die("handle SIGBUS");
}

unsigned int signals_seen(void)
{
	return (unsigned int)seen;
}

static bool has_all(const char *line, const char *const *wanted)
{
	for (; **wanted; wanted++)
		if (!strstr(line, *wanted))
			return false;
	return true;
}

void find_record(char *text, size_t size, const char *const *wanted)
{
	FILE *list = fopen(FAULT_LIST, "re");
	char *line = NULL;
	size_t room = 0;

	text[0] = 0;
	while (list && !text[0] && getline(&line, &room, list) > 0)
		if (has_all(line, wanted))
			snprintf(text, size, "%.*s", (int)strcspn(line, "\n"), line);
	free(line);
	if (list)
		fclose(list);
}

unsigned long long start_of(pid_t pid)
{
	char path[40], text[1024], *at;
	unsigned int field;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (length <= 0)
		die("read the start time of a process");
	close(fd);
	text[length] = 0;
	at = strrchr(text, ')');
	for (field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at, NULL, 10) : 0;
}

int listen_to_uevents(void)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = 1 };
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		die("listen to uevents");
	return fd;
}

void next_report(int fd, char *text, size_t size)
{
	struct pollfd readable = { .fd = fd, .events = POLLIN };

	text[0] = 0;
	while (poll(&readable, 1, PATIENCE_MS) == 1) {
		ssize_t length = recv(fd, text, size - 1, 0), i;

		if (length <= 0)
			break;
		text[length] = 0;
		for (i = 0; i < length; i++)
			if (!text[i])
				text[i] = ' ';
		if (strstr(text, "fault_contained"))
			return;
	}
	text[0] = 0;
}
