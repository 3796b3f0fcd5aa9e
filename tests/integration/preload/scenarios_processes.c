// More than one process, or no driver.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

// A child has nothing of ours: its calls go to the driver as they are, and its exit reports nothing.
static void in_child(const api *cuda, uint64_t large, long raw) {
    const pid_t child = raw ? (pid_t)syscall(SYS_fork) : fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint64_t address = 0;
        if (cuda->cuMemAlloc_v2(&address, 4 * MIB) != 0 || is_placed(address)) _exit(3);
        if (cuda->cuMemFree_v2(address) != 0) _exit(4);
        if (cuda->cuMemFree_v2(large) != 1) _exit(5);
        exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void forks(const api *cuda) {
    const uint64_t large = allocated(cuda, 4 * MIB);
    in_child(cuda, large, 0);
    in_child(cuda, large, 1);  // past glibc, so past any handler for fork
    CHECK(*(unsigned char *)(uintptr_t)large == 0x5a);
    CHECK(is_placed(allocated(cuda, 4 * MIB)));
    CHECK(cuda->cuMemFree_v2(large) == 0);
    check_nothing_left(cuda);
}

// What a later driver returns under the same name for a later version has another signature, and is passed on.
static void newer_version(const api *cuda) {
    (void)cuda;
    void *function = NULL;
    int status;
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*query)(const char *, void **, int, uint64_t, int *);
    void *const found = dlsym(library, "cuGetProcAddress_v2");
    memcpy(&query, &found, sizeof found);
    CHECK(query("cuMemAlloc", &function, 20000, 0, &status) == 0);
    CHECK(((int (*)(uint64_t *, size_t, void *))function)(NULL, 1, NULL) == 802);
    CHECK(query("cuMemAlloc", &function, 2000, 0, &status) == 0);
    CHECK(((int (*)(unsigned *, unsigned))function)(NULL, 1) == 801);
    CHECK(query("cuNothing", &function, 13000, 0, &status) == 0 && function == NULL && status == 1);
    CHECK(dlsym(library, "cuNothing") == NULL && dlerror() != NULL);
    CHECK(dlsym(library, "cuMemAlloc") != NULL && dlerror() == NULL);
    CHECK(dlsym(RTLD_NEXT, "cuInit") != NULL);
}

// Left to the exit of the process.
static void leaves_all(const api *cuda) {
    allocated(cuda, 4 * MIB);
    allocated(cuda, 100);
    allocated(cuda, 3 * MIB);
}

// As `leaves_all`, and waits on standard input until the zone table has been read.
static void waits_for_reader(const api *cuda) {
    const uint64_t first = allocated(cuda, 4 * MIB), second = allocated(cuda, 3 * MIB + 5);
    CHECK(cuda->cuMemFree_v2(first) == 0);
    printf("%llu\n", (unsigned long long)second);
    fflush(stdout);
    char byte;
    CHECK(read(STDIN_FILENO, &byte, 1) >= 0);
}

// As `waits_for_reader`, after a child has done what would be counted.
static void child_loads(const api *cuda) {
    allocated(cuda, 4 * MIB);
    const pid_t child = fork();
    if (child == 0) _exit(dlopen("./plugin.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) != NULL ? 0 : 3);
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    waits_for_reader(cuda);
}

const scenario scenarios_of_processes[] = {
    {"forks", forks},
    {"newer_version", newer_version},
    {"leaves_all", leaves_all},
    {"waits_for_reader", waits_for_reader},
    {"child_loads", child_loads},
    {NULL, NULL},
};
