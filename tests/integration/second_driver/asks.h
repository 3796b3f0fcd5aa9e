// A program that asks itself for a move, in place of the guard (mpsguard/guard/broker/move_page.py).
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOVE_TOKEN = 3968, MOVE_ANSWER = 3976, ANSWER_UNDER_WAY = 1, CLAIM_PHASE = 4036, CLAIM_REASON = 4040 };

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

// Of the guard's page in the directory of second drivers; the program's own word is in its table.
static bool ask_move(uint32_t number, unsigned share) {
    struct { uint64_t token; uint32_t number; uint16_t share, flags; } slot = {.number = number, .share = (uint16_t)share};
    char path[4096];
    snprintf(path, sizeof path, "%s/moves", getenv("MPSGUARD_SECOND_PIPE_DIRECTORY"));
    const int page = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    for (int i = 0; i < 100000 && slot.token == 0; ++i) {
        if (pread(move_table(), &slot.token, sizeof slot.token, MOVE_TOKEN) != sizeof slot.token) break;
        if (slot.token == 0) usleep(100);
    }
    const bool asked = slot.token != 0 && pwrite(page, &slot, sizeof slot, 0) == sizeof slot;
    close(page);
    return asked;
}

// What was answered to that request; 0: nothing yet.
static int move_answer(uint32_t number) {
    uint64_t word = 0;
    if (pread(move_table(), &word, sizeof word, MOVE_ANSWER) != sizeof word || (uint32_t)word != number) return 0;
    return (int)(word >> 32) > ANSWER_UNDER_WAY ? (int)(word >> 32) : 0;
}

// What it says of itself: that it would live through a fault.
static inline bool would_live(void) {
    unsigned char phase = 0, reason = 0;
    return pread(move_table(), &phase, 1, CLAIM_PHASE) == 1 && pread(move_table(), &reason, 1, CLAIM_REASON) == 1 && phase != 0 && reason == 0;
}
