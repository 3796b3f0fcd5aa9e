// A program that asks itself for a move, in place of the guard: as mpsguard/preload/zone_table.h has it.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOVE_REQUEST = 3968, MOVE_ANSWER = 3976, ANSWER_UNDER_WAY = 1 };

static int move_table(void) {
    static int table = -1;
    char path[300], name[300];
    DIR *const all = table < 0 ? opendir("/proc/self/fd") : NULL;
    for (const struct dirent *each; all != NULL && (each = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", each->d_name);
        const ssize_t length = readlink(path, name, sizeof name - 1);
        if (length > 0 && strncmp(name, "/memfd:mpsguard-zones", 21) == 0) table = atoi(each->d_name);
    }
    if (all != NULL) closedir(all);
    return table;
}

// `share` in hundredths of a percent.
static bool ask_move(uint32_t number, uint64_t share) {
    const uint64_t word = number | share << 32;
    return pwrite(move_table(), &word, sizeof word, MOVE_REQUEST) == sizeof word;
}

// What was answered to that request; 0: nothing yet.
static int move_answer(uint32_t number) {
    uint64_t word = 0;
    if (pread(move_table(), &word, sizeof word, MOVE_ANSWER) != sizeof word || (uint32_t)word != number) return 0;
    return (int)(word >> 32) > ANSWER_UNDER_WAY ? (int)(word >> 32) : 0;
}
