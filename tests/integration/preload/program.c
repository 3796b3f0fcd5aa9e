// A program under test: it knows nothing of the preload, and reaches the driver in the way it is told.
//
//   program WAY SCENARIO        WAY as in reach.h, or "plugin:FILE:FLAGS:WAY" for a library that it loads
#define _GNU_SOURCE
#include "program.h"

#include <dlfcn.h>
#include <string.h>

uint64_t allocated(const api *cuda, size_t size) {
    uint64_t address = 0;
    CHECK(cuda->cuMemAlloc_v2(&address, size) == 0);
    CHECK(address != 0 && address % 512 == 0);
    memset((void *)(uintptr_t)address, 0x5a, size);
    return address;
}

void *new_stream(const api *cuda) {
    void *stream = NULL;
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0);
    return stream;
}

uint64_t ordered(const api *cuda, size_t size, void *stream) {
    uint64_t address = 0;
    CHECK(cuda->cuMemAllocAsync(&address, size, stream) == 0);
    CHECK(address != 0 && address % 512 == 0 && is_placed(address));
    ((unsigned char *)(uintptr_t)address)[0] = ((unsigned char *)(uintptr_t)address)[size - 1] = 0x5a;
    return address;
}

void set_threshold(const api *cuda, uint64_t bytes) {
    void *pool;
    CHECK(cuda->cuDeviceGetDefaultMemPool(&pool, 0) == 0);
    CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &bytes) == 0);
}

bool is_placed(uint64_t address) {
    // Only memory that is mapped by a handle has one.
    unsigned long long handle;
    return stub_retain(&handle, (void *)(uintptr_t)address) == 0;
}

void check_nothing_left(const api *cuda) {
    CHECK(cuda->cuDevicePrimaryCtxReset_v2(0) == 0);
    CHECK(stub_count("handles") == 0);
    CHECK(stub_count("mappings") == 0);
    CHECK(stub_count("reservations") == 0);
    CHECK(stub_count("plain") == 0);
    CHECK(stub_count("armed") == 0);
    CHECK(stub_violations() == 0);
}

static int reach_by(const char *way, api *out) {
    if (strncmp(way, "plugin:", 7) != 0) return reach(way, out);
    char file[256], flags[64], inner[64];
    if (sscanf(way, "plugin:%255[^:]:%63[^:]:%63s", file, flags, inner) != 3) return 0;
    int mode = RTLD_LOCAL | (strstr(flags, "lazy") != NULL ? RTLD_LAZY : RTLD_NOW);
    if (strstr(flags, "deepbind") != NULL) mode |= RTLD_DEEPBIND;
    void *const plugin = dlopen(file, mode);
    if (plugin == NULL) return fprintf(stderr, "%s\n", dlerror()), 0;
    void *const found = dlsym(plugin, "plugin_reach");
    int (*plugin_reach)(const char *, api *);
    memcpy(&plugin_reach, &found, sizeof found);
    return found != NULL && plugin_reach(inner, out);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    api cuda;
    void *context;
    CHECK(reach_by(words[1], &cuda));
    CHECK(cuInit(0) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    const scenario *const lists[] = {scenarios_of_memory, scenarios_of_fallback, scenarios_of_processes,
                                     scenarios_of_order,  scenarios_of_order_edges, scenarios_of_pools,
                                     scenarios_at_random, scenarios_of_random_order, scenarios_of_ipc,
                                     scenarios_of_snapshots, scenarios_of_races};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; ++i)
        for (const scenario *s = lists[i]; s->name != NULL; ++s)
            if (strcmp(s->name, words[2]) == 0) return s->run(&cuda), 0;
    fprintf(stderr, "no scenario %s\n", words[2]);
    return 2;
}
