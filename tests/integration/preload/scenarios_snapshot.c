// A program that a snapshot is taken of: it works on, and says what it has.
#include <string.h>
#include <unistd.h>

#include "program.h"

// Contents that tell each byte of each allocation from others.
static void fill(uint64_t address, size_t size, unsigned salt) {
    unsigned char *const bytes = (unsigned char *)(uintptr_t)address;
    for (size_t i = 0; i < size; ++i) bytes[i] = (unsigned char)((i * 31 + i / 4096 * 7 + salt) & 0xff);
}

static void tell(const char *what, uint64_t address, size_t size, unsigned salt) {
    printf("%s %llu %zu %u\n", what, (unsigned long long)address, size, salt);
}

// Large, in stream order, freed in stream order and held, small, of the driver's own; then `child PID` and `ready`.
// Each line from standard input is answered by the number of lines so far. "free" frees the first allocation, "churn"
// makes and frees many, "leave" frees all; the end of it ends the program.
static void snapshot_target(const api *cuda) {
    char line[64];
    void *const stream = new_stream(cuda);
    set_threshold(cuda, KEEP_ALL);
    const size_t size = 5 * MIB + 123;
    const uint64_t large = allocated(cuda, size), in_order = ordered(cuda, 3 * MIB, stream);
    const uint64_t held = ordered(cuda, 2 * MIB, stream), small = allocated(cuda, 1000), other = allocated(cuda, 300);
    uint64_t plain = 0;
    void *graph = NULL;
    fill(large, size, 1), fill(in_order, 3 * MIB, 2), fill(held, 2 * MIB, 3), fill(small, 1000, 4), fill(other, 300, 5);
    stub_work(stream, held);
    CHECK(cuda->cuMemFreeAsync(held, stream) == 0);
    CHECK(cuda->cuStreamBeginCapture_v2(stream, 0) == 0);
    CHECK(cuda->cuMemAllocAsync(&plain, MIB, stream) == 0 && !is_placed(plain));
    CHECK(cuda->cuStreamEndCapture(stream, &graph) == 0);
    const pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    tell("large", large, size, 1), tell("ordered", in_order, 3 * MIB, 2), tell("freed", held, 2 * MIB, 3);
    tell("small", small, 1000, 4), tell("small", other, 300, 5);
    printf("child %d\nready\n", (int)child);
    fflush(stdout);
    for (unsigned long steps = 0; fgets(line, sizeof line, stdin) != NULL;) {
        if (strcmp(line, "free\n") == 0) CHECK(cuda->cuMemFree_v2(large) == 0);
        if (strcmp(line, "churn\n") == 0)
            for (size_t i = 0; i < 60; ++i) CHECK(cuda->cuMemFree_v2(allocated(cuda, MIB + 1 + i % 3 * MIB)) == 0);
        if (strcmp(line, "leave\n") == 0) check_nothing_left(cuda);
        printf("%lu\n", ++steps);
        fflush(stdout);
    }
}

const scenario scenarios_of_snapshots[] = {{"snapshot_target", snapshot_target}, {NULL, NULL}};
