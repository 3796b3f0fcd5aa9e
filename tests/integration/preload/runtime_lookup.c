// Which driver functions NVIDIA's own runtime library holds after it has looked them up: the hooks, or the driver's?
//
// The runtime does not come up on the stub, which lacks the driver's private tables; but it looks every function up
// before it notices. So its writable memory is searched for either address. Prints "NAME hooks=N driver=N" lines.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern int cudaGetDeviceCount(int *);

// Words with that value in the writable memory of the object that has the runtime and a name that contains `object`.
static long words(const char *object, uintptr_t value) {
    char line[512];
    long found = 0;
    int inside = 0;
    FILE *const maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t low, high;
        char rights[5], path[400] = "";
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %*s %399s", &low, &high, rights, path) < 3) continue;
        // What follows an object's last mapping without a name is the rest of its data.
        inside = strstr(path, object) != NULL || (inside && path[0] == '\0');
        if (!inside || rights[1] != 'w') continue;
        for (const uintptr_t *at = (const uintptr_t *)low; at < (const uintptr_t *)high; ++at) found += *at == value;
    }
    if (maps != NULL) fclose(maps);
    return found;
}

int main(int count, char **arguments) {
    static const char *const names[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocPitch_v2", "cuMemFreeAsync",
                                        "cuPointerGetAttributes", "cuIpcGetMemHandle", "cuStreamEndCapture"};
    int devices;
    if (count != 2) return 2;
    // Held, because the runtime closes a driver that it cannot use.
    void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
    cudaGetDeviceCount(&devices);
    if (driver == NULL) return 3;
    void *const found = dlsym(driver, "stub_address");
    uintptr_t (*address)(const char *);
    memcpy(&address, &found, sizeof found);
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        void *const hook = dlsym(RTLD_DEFAULT, names[i]);
        printf("%s hooks=%ld driver=%ld\n", names[i], words(arguments[1], (uintptr_t)hook),
               words(arguments[1], address(names[i])));
    }
    return 0;
}
