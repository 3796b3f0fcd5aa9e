// An unmodified CUDA program that waits for requests: one line of its input each, one line of JSON in return.
//
//   served IMAGE      step: compute, and check all content; queue: compute, and do not wait; trap: a kernel that faults; managed: use
//                     managed memory; settle: wait until the preload has saved what it saves of a program that stands still
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "looks.h"

typedef unsigned long long address;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *);
extern int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *), cuMemAlloc_v2(address *, size_t);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
extern int cuMemcpyHtoD_v2(address, const void *, size_t), cuMemcpyDtoH_v2(void *, address, size_t), cuMemAllocManaged(address *, size_t, unsigned);

enum { ELEMENTS = 1024, BYTES = 4 * ELEMENTS };
static uint32_t model[ELEMENTS];
static address buffer;
static void *affine, *trap, *stream;

static int launch(void *kernel) {
    const address n = ELEMENTS, a = 3, b = 7;
    void *parameters[] = {&buffer, (void *)&n, (void *)&a, (void *)&b};
    if (kernel == affine)
        for (int i = 0; i < ELEMENTS; ++i) model[i] = model[i] * 3 + 7;
    return cuLaunchKernel(kernel, 4, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}

static int step(void) {
    static uint32_t got[ELEMENTS];
    int result = launch(affine);
    if (result == 0) result = cuStreamSynchronize(stream);
    if (result == 0) result = cuMemcpyDtoH_v2(got, buffer, BYTES);
    return result != 0 ? result : memcmp(got, model, BYTES) == 0 ? 0 : -1;
}

static int queue(void) {
    int result = 0;
    for (int i = 0; result == 0 && i < 5; ++i) result = launch(affine);
    return result;
}

static int fault(void) {
    const int result = launch(trap);
    return result != 0 ? result : cuStreamSynchronize(stream);
}

static int settle(void) {
    await_looks();
    return 0;
}

static int answer(const char *line) {
    address managed;
    if (strcmp(line, "settle\n") == 0) return settle();
    if (strcmp(line, "managed\n") == 0) return cuMemAllocManaged(&managed, 4096, 1);
    if (strcmp(line, "queue\n") == 0) return queue();
    return strcmp(line, "trap\n") == 0 ? fault() : step();
}

int main(int argc, char **argv) {
    static unsigned char image[1 << 20];
    void *context, *module;
    char line[64];
    FILE *const f = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (f == NULL || fread(image, 1, sizeof image, f) == 0) return 2;
    fclose(f);
    for (int i = 0; i < ELEMENTS; ++i) model[i] = (uint32_t)i;
    const int result = cuInit(0);
    if (result != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0) return printf("{\"event\": \"refused\", \"code\": %d}\n", result), 3;
    if (cuModuleLoadData(&module, image) != 0 || cuModuleGetFunction(&affine, module, "affine") != 0 || cuModuleGetFunction(&trap, module, "trap") != 0) return 4;
    if (cuStreamCreate(&stream, 1) != 0 || cuMemAlloc_v2(&buffer, BYTES) != 0 || cuMemcpyHtoD_v2(buffer, model, BYTES) != 0 || cuStreamSynchronize(NULL) != 0) return 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("{\"event\": \"ready\"}");
    while (fgets(line, sizeof line, stdin) != NULL) {
        const int code = answer(line);
        printf("{\"event\": \"%s\", \"code\": %d}\n", code == 0 ? "done" : code < 0 ? "wrong" : "lost", code);
    }
    return 0;
}
