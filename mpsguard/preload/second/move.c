#define _GNU_SOURCE
#include "second/move.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "second/ahead.h"
#include "second/beside.h"
#include "second/limits.h"
#include "second/mappings.h"
#include "second/memory_pools.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/variables.h"
#include "second/work.h"

// As for an epoch that the program gives no moment for.
#define QUIET_MS 100
#define DRAIN_MS 500
#define MOST_SOCKETS 256
// Of copies of the driver: one to go over with at a fault, and one to repeat work in.
#define LEFT_FOR_FAULTS 2

// That this attempt failed is no reason for another one.
static int64_t failures;

void move_give_up(void) {
    const bool made = beside_is_made(PLACE_LANE) && beside_enter(PLACE_LANE);
    if (made) memory_take_back();
    else ahead_give_up(false);
    rebuild_give_up();
    beside_give_up();
    reasons_let_go_to(REASON_second_failed, failures);
}

static const char *failed(const char *step) {
    move_give_up();
    return step;
}

const char *move_prepare(unsigned share) {
    failures = reasons_count(REASON_second_failed);
    beside_want_share(share);
    // One that was made for a fault has the share of the program.
    if (!beside_has_share()) {
        if (copies_left() <= LEFT_FOR_FAULTS) return MOVE_NO_COPIES;
        move_give_up();
    }
    if (!beside_make(PLACE_LANE) || !beside_enter(PLACE_LANE) || !limits_set()) return failed("context");
    if (!mappings_reserve_again()) return failed("addresses");
    return rebuild_ahead(INT_MAX) && variables_ahead() && reasons_count(REASON_second_failed) == failures ? NULL : failed("objects");
}

bool move_stop(void) {
    work_close();
    // What asks a stream during a capture ends the capture.
    if (!work_is_quiet(QUIET_MS) || work_is_captured()) return false;
    if (CALL(copies_at_hand(), cuCtxSetCurrent, copies_at_hand()->context) != MG_SUCCESS) return false;
    work_drain_threads(DRAIN_MS);
    if (!work_is_idle() && !work_drain(DRAIN_MS)) return false;
    // Here nothing has to be guessed of work that was enqueued past us.
    return copies_call(copies_at_hand(), FUNCTION_cuCtxSynchronize, NULL, 0) == MG_SUCCESS;
}

void move_go_on(void) { work_open(); }

const char *move_carry(void) {
    reason why;
    const uint64_t total = work_total();
    if (!variables_are_saved(total) && !variables_save(total)) return "variables";
    if (!beside_enter(PLACE_LANE) || !limits_set_ahead()) return "context";
    if (!memory_move(false)) return "memory";
    if (!rebuild_at_takeover() || !rebuild_graphs() || !variables_restore() || !memory_pools_move()) return "objects";
    if (copies_call(copies_at_work(), FUNCTION_cuCtxSynchronize, NULL, 0) != MG_SUCCESS || !memory_is_the_same()) return "compare";
    return reasons_any(&why) ? reasons_name(why) : NULL;
}

static struct { int fd; ino_t inode; } sockets[MOST_SOCKETS];
static size_t socket_count;

void move_note_sockets(void) {
    DIR *const all = opendir("/proc/self/fd");
    socket_count = 0;
    for (const struct dirent *each; all != NULL && (each = readdir(all)) != NULL && socket_count < MOST_SOCKETS;) {
        struct stat file;
        const int fd = atoi(each->d_name);
        if (each->d_name[0] == '.' || fstat(fd, &file) != 0 || !S_ISSOCK(file.st_mode)) continue;
        sockets[socket_count].fd = fd;
        sockets[socket_count++].inode = file.st_ino;
    }
    if (all != NULL) closedir(all);
}

// A server of MPS, by its name: it has made the pair of sockets, and is the other end's process.
static bool is_of_server(int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    char path[64], name[32] = "";
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return false;
    snprintf(path, sizeof path, "/proc/%d/comm", (int)peer.pid);
    FILE *const file = fopen(path, "re");
    const bool known = file != NULL && fgets(name, sizeof name, file) != NULL && strncmp(name, "nvidia-cuda-mps", 15) == 0;
    if (file != NULL) fclose(file);
    return known;
}

// The server sees the end of a client by that of its sockets. They stay open: the number of a descriptor that the first driver
// knows must not become another one's.
void move_shut_down(void) {
    for (size_t i = 0; i < socket_count; ++i) {
        struct stat file;
        const int fd = sockets[i].fd;
        if (fstat(fd, &file) == 0 && file.st_ino == sockets[i].inode && is_of_server(fd)) shutdown(fd, SHUT_RDWR);
    }
}

void move_close(const driver_copy *left, memory_list *all) {
    if (CALL(left, cuCtxSetCurrent, left->context) == MG_SUCCESS) memory_let_go(left, all);
}
