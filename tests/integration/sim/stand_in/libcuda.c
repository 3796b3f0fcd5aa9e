/* A stand-in for libcuda, as far as the sentinel uses it: no GPU, no context. On SIGUSR1 it writes the file `core`
 * that lies beside it to CUDA_COREDUMP_FILE, as the driver writes its dump when an SM faults; MPSGUARD_STAND_IN=refuse
 * is not heard here: a file `refuse` beside it makes cuInit fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char core[4096];

static void beside(char *path, size_t size, const char *name)
{
    Dl_info info;
    dladdr((void *)beside, &info);
    snprintf(path, size, "%.*s/%s", (int)(strrchr(info.dli_fname, '/') - info.dli_fname), info.dli_fname, name);
}

static void dump(int signal_number)
{
    char buffer[65536];
    int from = open(core, O_RDONLY);
    int to = open(getenv("CUDA_COREDUMP_FILE"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t count;
    (void)signal_number;
    while ((count = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, (size_t)count) != count)
            break;
    close(from);
    close(to);
}

int cuInit(unsigned flags)
{
    char refuse[4096];
    struct sigaction action = {.sa_handler = dump, .sa_flags = SA_RESTART};
    (void)flags;
    beside(core, sizeof core, "core");
    beside(refuse, sizeof refuse, "refuse");
    sigaction(SIGUSR1, &action, NULL);
    return access(refuse, F_OK) == 0 ? 807 : 0;
}

int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = NULL; return device; }
