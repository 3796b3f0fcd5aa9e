#define _GNU_SOURCE
#include "uvm_zone.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Each search that fails may cost a page of addresses (see takes_mappings), and finds nothing the next time either.
#define UVM_TRIES 16

static void *at(uint64_t address) { return (void *)(uintptr_t)address; }

static void *map_managed(int fd, uint64_t start, uint64_t length, int how) {
    return mmap(at(start), length, PROT_READ | PROT_WRITE, MAP_SHARED | how, fd, (off_t)start);
}

static void *map_nothing(uint64_t start, uint64_t length, int how) {
    return mmap(at(start), length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | how, -1, 0);
}

static bool is_named(int fd, const char *path) {
    char link[32], text[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, text, sizeof text - 1);
    if (length < 0) return false;
    text[length] = '\0';
    return strcmp(text, path) == 0;
}

// Tried on a page of our own and not on a zone: a mapping that fails leaves a hole where it was to be.
static bool takes_mappings(int fd) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    void *const own = map_nothing(0, page, 0);
    if (own == MAP_FAILED) return false;
    // After a failure the page is left alone: if the kernel took it away, it may be another thread's by now.
    if (map_managed(fd, (uint64_t)(uintptr_t)own, page, MAP_FIXED) == MAP_FAILED) return false;
    munmap(own, page);
    return true;
}

static bool is_still_there(const uvm_space *space) {
    struct stat now;
    return space->fd >= 0 && fstat(space->fd, &now) == 0 && now.st_dev == space->device && now.st_ino == space->inode;
}

static bool find(uvm_space *space, const char *path) {
    space->fd = -1;
    if (space->failed == UVM_TRIES) return false;
    ++space->failed;
    DIR *const directory = opendir("/proc/self/fd");
    if (directory == NULL) return false;
    for (const struct dirent *entry; space->fd < 0 && (entry = readdir(directory)) != NULL;) {
        char *end;
        const long fd = strtol(entry->d_name, &end, 10);
        struct stat found;
        if (end == entry->d_name || *end != '\0' || !is_named((int)fd, path) || fstat((int)fd, &found) != 0 ||
            !takes_mappings((int)fd))
            continue;
        space->fd = (int)fd;
        space->device = found.st_dev;
        space->inode = found.st_ino;
    }
    closedir(directory);
    if (space->fd < 0) return false;
    space->failed = 0;
    return true;
}

static bool is_mapped(uint64_t address) {
    unsigned char resident;
    return mincore(at(address), 1, &resident) == 0 || errno != ENOMEM;
}

bool uvm_arm(uvm_space *space, const char *path, uint64_t start, uint64_t length, uvm_before *before) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const bool first = is_mapped(start), last = is_mapped(start + length - page);
    if (first != last) return false;
    *before = first ? UVM_WAS_MAPPED : UVM_WAS_UNMAPPED;
    const int how = first ? MAP_FIXED : MAP_FIXED_NOREPLACE;
    if (!is_still_there(space) && !find(space, path)) return false;
    if (map_managed(space->fd, start, length, how) == at(start)) return true;
    // The kernel may have taken away what was there before it asked the driver. Another thread may have got the
    // addresses since; what it has there stays.
    if (first) map_nothing(start, length, MAP_FIXED_NOREPLACE);
    space->fd = -1;
    return false;
}

void uvm_disarm(uint64_t start, uint64_t length, uvm_before before) {
    if (before == UVM_WAS_UNMAPPED || map_nothing(start, length, MAP_FIXED) == MAP_FAILED) munmap(at(start), length);
}
