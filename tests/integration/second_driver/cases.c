// Cases for a single program, one a run: it works, stands still until its variables are saved, meets the fault, and goes on.
//
//   cases NAME IMAGE IMAGE_WITH_POINTERS
//
// Prints "survived", "lost CODE" or "WRONG ..." as program.c does.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "looks.h"

typedef unsigned long long address;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxReset_v2(int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
extern int cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *), cuStreamDestroy_v2(void *);
extern int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventSynchronize(void *), cuEventDestroy_v2(void *);
extern int cuModuleLoad(void **, const char *), cuModuleLoadData(void **, const void *), cuModuleUnload(void *), cuModuleGetFunction(void **, void *, const char *);
extern int cuModuleGetGlobal_v2(address *, size_t *, void *, const char *);
extern int cuLibraryLoadData(void **, const void *, int *, void **, unsigned, int *, void **, unsigned), cuLibraryEnumerateKernels(void **, unsigned, void *);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
extern int cuMemAlloc_v2(address *, size_t), cuMemFreeHost(void *), cuMemHostRegister_v2(void *, size_t, unsigned);
extern int cuMemHostAlloc(void **, size_t, unsigned), cuMemHostGetFlags(unsigned *, void *);
extern int cuMemcpyHtoD_v2(address, const void *, size_t), cuMemcpyDtoH_v2(void *, address, size_t);
extern int cuMemCreate(unsigned long long *, size_t, const void *, unsigned long long), cuMemExportToShareableHandle(void *, unsigned long long, int, unsigned long long);
extern int cuStreamWaitEvent(void *, void *, unsigned), cuMemHostUnregister(void *), cuMemHostGetDevicePointer_v2(address *, void *, unsigned), cuEventElapsedTime(float *, void *, void *), cuCtxCreate_v2(void **, unsigned, int);
extern int cuLaunchKernelEx(const void *, void *, void **, void **);
extern int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
extern int cuLibraryGetGlobal(address *, size_t *, void *, const char *), cuLibraryGetKernel(void **, void *, const char *), cuEventQuery(void *), cuStreamQuery(void *);
extern int cuMemcpyDtoHAsync_v2(void *, address, size_t, void *), cuMemcpyHtoDAsync_v2(address, const void *, size_t, void *);
extern int cuMemcpyDtoDAsync_v2(address, address, size_t, void *), cuMemcpy2DAsync_v2(const void *, void *), cuMemsetD32Async(address, unsigned, size_t, void *);
extern int cuMemFree_v2(address), cuMemMap(address, size_t, size_t, unsigned long long, unsigned long long), cuMemUnmap(address, size_t);
extern int cuMemAddressReserve(address *, size_t, size_t, address, unsigned long long), cuMemSetAccess(address, size_t, const void *, size_t);
extern int cuMemsetD32_v2_ptds(address, unsigned, size_t), cuCtxSetLimit(int, size_t), cuCtxGetLimit(size_t *, int), cuFuncSetAttribute(void *, int, int), cuMemGetInfo_v2(size_t *, size_t *), cuMemAllocFromPoolAsync(address *, size_t, void *, void *), cuMemcpyAsync(address, address, size_t, void *);
extern int cuDeviceGetDefaultMemPool(void **, int), cuMemPoolSetAttribute(void *, int, void *), cuMemPoolGetAttribute(void *, int, void *);
extern int cuMemPoolTrimTo(void *, size_t), cuMemAllocAsync(address *, size_t, void *), cuMemFreeAsync(address, void *);
extern int cuDriverGetVersion(int *), cuMemRelease(unsigned long long);
extern int cuThreadExchangeStreamCaptureMode(int *), cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
extern int cuGraphLaunch(void *, void *), cuGraphDestroy(void *), cuGraphExecDestroy(void *), cuGraphGetNodes(void *, void **, size_t *), cuGraphExecUpdate_v2(void *, void *, void *), cuGraphUpload(void *, void *), cuKernelGetFunction(void **, void *);
extern int cuMemGetAllocationPropertiesFromHandle(void *, unsigned long long), cuIpcGetMemHandle(void *, address);

static void *context, *module, *stream;
static address buffer;
static void *image, *image_with_pointers, *image_of_variables;
static char writable[1 << 20];

static void wrong(const char *what) {
    printf("WRONG %s\n", what);
    fflush(stdout);
    _exit(1);
}

static void lost(int code) {
    printf("lost %d\n", code);
    fflush(stdout);
    _exit(0);
}

#define DO(call)                          \
    do {                                  \
        const int result_ = (call);       \
        if (result_ == 719) lost(result_); \
        if (result_ != 0) wrong(#call);   \
    } while (0)

static const char *lane_file(const char *lane, const char *name) {
    static __thread char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv(lane), name);
    return path;
}
#define FIRST "CUDA_MPS_PIPE_DIRECTORY"
#define SECOND "MPSGUARD_SECOND_PIPE_DIRECTORY"
static void make_file(const char *lane, const char *name) { close(open(lane_file(lane, name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); }

static void await_file(const char *lane, const char *name) {
    for (int i = 0; i < 20000 && access(lane_file(lane, name), F_OK) != 0; ++i) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void settle(void) { await_looks(); }
static void fault_at_once(void) { make_file(FIRST, "fault"); }
static void fault(void) {
    settle();
    fault_at_once();
}

static void launch(void *function, void *in) {
    const address n = 4, a = 3, b = 1;
    void *parameters[] = {&buffer, (void *)&n, (void *)&a, (void *)&b};
    DO(cuLaunchKernel(function, 1, 1, 1, 4, 1, 1, 0, in, parameters, NULL));
}

static void *function(const char *name) {
    void *found = NULL;
    DO(cuModuleGetFunction(&found, module, name));
    return found;
}

static void set(uint32_t value) {
    const uint32_t all[4] = {value, value, value, value};
    DO(cuMemcpyHtoD_v2(buffer, all, sizeof all));
    DO(cuCtxSynchronize());
}

static void expect(uint32_t value, const char *what) {
    uint32_t got = 0;
    DO(cuMemcpyDtoH_v2(&got, buffer, sizeof got));
    if (got != value) wrong(what);
}

// Handles of an unloaded module's functions are given to others.
static void handles_used_again(void) {
    void *const before = function("affine");
    DO(cuModuleUnload(module));
    DO(cuModuleLoadData(&module, image));
    void *const count = function("count");
    if (count != before) wrong("the stand-in");
    set(0);
    fault();
    launch(count, stream);
    DO(cuStreamSynchronize(stream));
    expect(42, "kernel");
}

static void image_in_writable_memory(void) {
    memcpy(writable, image, sizeof writable);
    DO(cuModuleUnload(module));
    DO(cuModuleLoadData(&module, writable));
    void *const count = function("count");
    memset(writable, 0, sizeof writable);
    launch(count, stream);
    DO(cuStreamSynchronize(stream));
    fault();
    launch(count, stream);
    DO(cuStreamSynchronize(stream));
    expect(43, "counter");
}

// Compiled kernels of PyTorch come so. The file is gone when they are needed again.
static void image_in_a_file(void) {
    const int fd = open("compiled", O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    if (write(fd, image, sizeof writable) != sizeof writable) wrong("the file");
    close(fd);
    DO(cuModuleLoad(&module, "compiled"));
    unlink("compiled");
    if (cuModuleLoad(&module, "compiled") != 301) wrong("a file that is not there");
    void *const count = function("count");
    launch(count, stream);
    DO(cuStreamSynchronize(stream));
    fault();
    launch(count, stream);
    DO(cuStreamSynchronize(stream));
    expect(43, "counter");
}

// The second driver gives the handles of what is destroyed to others as well.
static void destroyed_after(void) {
    void *events[8], *affine = function("affine");
    for (int i = 0; i < 8; ++i) DO(cuEventCreate(&events[i], 2));
    set(1);
    fault();
    for (int i = 0; i < 8; ++i) DO(cuEventRecord(events[i], stream));
    for (int i = 0; i < 8; ++i) DO(cuEventDestroy_v2(events[i]));
    for (int i = 0; i < 8; ++i) DO(cuEventCreate(&events[i], 2));
    launch(affine, stream);
    for (int i = 0; i < 8; ++i) DO(cuEventRecord(events[i], stream));
    for (int i = 0; i < 8; ++i) DO(cuEventSynchronize(events[i]));
    DO(cuCtxSynchronize());
    expect(4, "content");
}

// A copy of no bytes waits for nothing.
static void empty_copy(void) {
    uint32_t none = 0;
    void *const affine = function("affine");
    set(1);
    launch(affine, NULL);
    DO(cuMemcpyDtoH_v2(&none, buffer, 0));
    fault();
    DO(cuCtxSynchronize());
    expect(4, "content");
}

static void exported(void) {
    const int properties[8] = {1, 1, 1, 0};
    unsigned long long handle;
    int fd = -1;
    DO(cuMemCreate(&handle, 2 << 20, properties, 0));
    DO(cuMemExportToShareableHandle(&fd, handle, 1, 0));
    fault();
    DO(cuCtxSynchronize());
}

static void exported_by_ipc(void) {
    char handle[64];
    DO(cuIpcGetMemHandle(handle, buffer));
    fault();
    DO(cuCtxSynchronize());
}

static void handle_asked(void) {
    const int properties[8] = {1, 1, 1, 0};
    unsigned long long handles[40];
    int out[8];
    for (int i = 0; i < 40; ++i) DO(cuMemCreate(&handles[i], 2 << 20, properties, 0));
    // The one that is left has another number in the second driver.
    for (int i = 0; i < 39; ++i) DO(cuMemRelease(handles[i]));
    fault();
    DO(cuCtxSynchronize());
    DO(cuMemGetAllocationPropertiesFromHandle(out, handles[39]));
}

// The second driver gives numbers that the first one has given.
static void created_after(void) {
    const int properties[8] = {1, 1, 1, 0};
    unsigned long long early[12], before[8], after[40];
    for (int i = 0; i < 12; ++i) DO(cuMemCreate(&early[i], 2 << 20, properties, 0));
    for (int i = 0; i < 8; ++i) DO(cuMemCreate(&before[i], 2 << 20, properties, 0));
    for (int i = 0; i < 12; ++i) DO(cuMemRelease(early[i]));
    fault();
    DO(cuCtxSynchronize());
    for (int i = 0; i < 40; ++i) {
        DO(cuMemCreate(&after[i], 2 << 20, properties, 0));
        for (int k = 0; k < 8; ++k)
            if (after[i] == before[k]) wrong("handle");
    }
    for (int i = 0; i < 40; ++i) DO(cuMemRelease(after[i]));
    for (int i = 0; i < 8; ++i) DO(cuMemRelease(before[i]));
}

static void enumerated(void) {
    void *library, *kernel;
    DO(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    DO(cuLibraryEnumerateKernels(&kernel, 1, library));
    set(1);
    fault();
    launch(kernel, stream);
    DO(cuCtxSynchronize());
    expect(4, "content");
}

static void constant_written_after(void) {
    address at;
    size_t size;
    const uint32_t seven = 7;
    void *const scale = function("scale");
    DO(cuModuleGetGlobal_v2(&at, &size, module, "factor"));
    launch(scale, stream);
    DO(cuStreamSynchronize(stream));
    expect(5, "constant");
    fault();
    DO(cuMemcpyHtoD_v2(at, &seven, sizeof seven));
    DO(cuCtxSynchronize());
    launch(scale, stream);
    DO(cuStreamSynchronize(stream));
    expect(7, "constant");
}

// Before any kernel of its library was asked for.
static void constant_written_first(void) {
    address at;
    size_t size;
    void *library, *kernel;
    const uint32_t seven = 7;
    DO(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    DO(cuLibraryGetGlobal(&at, &size, library, "factor"));
    DO(cuMemcpyHtoD_v2(at, &seven, sizeof seven));
    DO(cuCtxSynchronize());
    fault();
    DO(cuCtxSynchronize());
    DO(cuLibraryGetKernel(&kernel, library, "scale"));
    launch(kernel, stream);
    DO(cuStreamSynchronize(stream));
    expect(7, "constant");
}

static void variable_with_address(void) {
    DO(cuModuleLoadData(&module, image_with_pointers));
    launch(function("count"), stream);
    DO(cuStreamSynchronize(stream));
    fault();
    launch(function("count"), stream);
    DO(cuCtxSynchronize());
}

static void context_reset(void) {
    DO(cuDevicePrimaryCtxReset_v2(0));
    fault();
    DO(cuCtxSynchronize());
}

// Of several visible devices it uses another one as well.
static void another_device(void) {
    void *other;
    DO(cuDevicePrimaryCtxRetain(&other, 1));
    fault();
    DO(cuCtxSynchronize());
    wrong("went on");
}

static void *record(void *event) {
    DO(cuCtxSetCurrent(context));
    DO(cuEventRecord(event, stream));
    return NULL;
}

// What another thread's record hides from a wait.
static void recorded_meanwhile(void) {
    void *other, *event, *affine = function("affine");
    pthread_t thread;
    DO(cuStreamCreate(&other, 1));
    DO(cuEventCreate(&event, 2));
    set(1);
    launch(affine, other);
    DO(cuEventRecord(event, other));
    make_file(FIRST, "pause-record");
    pthread_create(&thread, NULL, record, event);
    await_file(FIRST, "paused");
    DO(cuEventSynchronize(event));
    unlink(lane_file(FIRST, "pause-record"));
    pthread_join(thread, NULL);
    fault();
    DO(cuCtxSynchronize());
    expect(4, "content");
}

static void *synchronize(void *unused) {
    DO(cuCtxSetCurrent(context));
    DO(cuCtxSynchronize());
    return unused;
}

// The default stream of a thread that has ended, and that of the next one, which has all addresses of the first.
static void *launch_in_own(void *affine) {
    DO(cuCtxSetCurrent(context));
    launch(affine, (void *)2);
    return NULL;
}

static void *wait_for_own(void *unused) {
    DO(cuCtxSetCurrent(context));
    DO(cuStreamSynchronize((void *)2));
    return unused;
}

static void stream_of_ended_thread(void) {
    pthread_t first, next;
    void *const affine = function("affine");
    set(1);
    DO(cuCtxSynchronize());
    pthread_create(&first, NULL, launch_in_own, affine);
    pthread_join(first, NULL);
    pthread_create(&next, NULL, wait_for_own, NULL);
    pthread_join(next, NULL);
    if (!pthread_equal(first, next)) wrong("the test: other addresses");
    fault();
    DO(cuCtxSynchronize());
    expect(4, "content");
}

// The fault is met by one thread, and another one's launch succeeds during the takeover.
static void *launch_late(void *affine) {
    DO(cuCtxSetCurrent(context));
    launch(affine, stream);
    return NULL;
}

static void late_launch(void) {
    void *const affine = function("affine");
    pthread_t first, late;
    set(1);
    make_file(SECOND, "pause-init");
    fault();
    pthread_create(&first, NULL, synchronize, NULL);
    await_file(SECOND, "paused");
    make_file(FIRST, "late");
    pthread_create(&late, NULL, launch_late, affine);
    // Without a gate it comes back by now; with one it waits.
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    unlink(lane_file(SECOND, "pause-init"));
    pthread_join(first, NULL);
    pthread_join(late, NULL);
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void registered_is_not_freed(void) {
    char *const memory = aligned_alloc(4096, 4096);
    unsigned flags = 0;
    void *pinned;
    memset(memory, 1, 4096);
    DO(cuMemHostRegister_v2(memory, 4096, 0));
    if (cuMemFreeHost(memory) == 0) wrong("freed");
    if (memory[4095] != 1) wrong("memory");
    DO(cuMemHostAlloc(&pinned, 100, 4));
    DO(cuMemHostGetFlags(&flags, (char *)pinned + 50));
    if (flags != 4) wrong("flags");
}

static void forked(void) {
    int status = 0;
    set(1);
    fault();
    DO(cuCtxSynchronize());
    const pid_t child = fork();
    if (child == 0) _exit(cuCtxSynchronize() == 3 && cuStreamSynchronize(stream) == 3 ? 0 : 1);
    if (waitpid(child, &status, 0) != child || status != 0) wrong("child");
    expect(1, "content");
}

static long resident_pages(void) {
    FILE *const f = fopen("/proc/self/statm", "r");
    long all = 0, resident = 0;
    if (f == NULL || fscanf(f, "%ld %ld", &all, &resident) != 2) exit(2);
    fclose(f);
    return resident;
}

static void many_events(void) {
    void *event;
    const long before = resident_pages();
    for (int i = 0; i < 200000; ++i) {
        DO(cuEventCreate(&event, 2));
        DO(cuEventDestroy_v2(event));
    }
    if (resident_pages() - before > 1024) wrong("memory grows");
}

static void nothing(void) {
    void *const affine = function("affine");
    set(1);
    fault();
    launch(affine, stream);
    DO(cuCtxSynchronize());
    expect(4, "content");
}

#include "ahead.h"

// Work in flight: what is enqueued after an epoch is done again.
static uint32_t after(uint32_t value, int launches) {
    for (int i = 0; i < launches; ++i) value = value * 3 + 1;
    return value;
}

static void queued(void) {
    void *const affine = function("affine");
    set(1);
    settle();
    for (int i = 0; i < 8; ++i) launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(after(1, 8), "content");
}

static void much_memory(void) {
    address more;
    for (int i = 0; i < 3; ++i) DO(cuMemAlloc_v2(&more, 200 << 20));
    queued();
}

// All ways to launch, and a kernel that no function stands for.
static void launched_otherwise(void) {
    void *library, *kernel, *const affine = function("affine");
    const address packed[] = {buffer, 4, 3, 1};
    size_t size = sizeof packed;
    void *parameters[] = {(void *)&packed[0], (void *)&packed[1], (void *)&packed[2], (void *)&packed[3]};
    void *extra[] = {(void *)1, (void *)packed, (void *)2, &size, NULL};
    struct { int id, pad; char value[64]; } attributes[] = {{2, 0, {1}}, {6, 0, {1}}};
    struct { unsigned sizes[7]; void *stream; void *attributes; unsigned count; } config = {{1, 1, 1, 4, 1, 1, 0}, stream, attributes, 2};
    DO(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    DO(cuLibraryGetKernel(&kernel, library, "affine"));
    set(1);
    settle();
    launch(kernel, stream);
    DO(cuLaunchKernelEx(&config, affine, parameters, NULL));
    DO(cuLaunchKernelEx(&config, kernel, NULL, extra));
    DO(cuLaunchCooperativeKernel(affine, 1, 1, 1, 4, 1, 1, 0, stream, parameters));
    DO(cuLaunchKernel(affine, 1, 1, 1, 4, 1, 1, 0, stream, NULL, extra));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(after(1, 5), "content");
}

static void variable_in_flight(void) {
    void *const count = function("count");
    settle();
    for (int i = 0; i < 5; ++i) launch(count, stream);
    fault_at_once();
    launch(count, stream);
    DO(cuStreamSynchronize(stream));
    expect(47, "counter");
}

static void constant_in_flight(void) {
    address at;
    size_t size;
    const uint32_t seven = 7;
    void *const scale = function("scale"), *const affine = function("affine");
    DO(cuModuleGetGlobal_v2(&at, &size, module, "factor"));
    launch(scale, stream);
    DO(cuStreamSynchronize(stream));
    settle();
    DO(cuMemcpyHtoDAsync_v2(at, &seven, sizeof seven, stream));
    launch(scale, stream);
    launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(22, "constant");
}

static void rows_in_flight(void) {
    address other;
    void *const affine = function("affine");
    DO(cuMemAlloc_v2(&other, 4096));
    set(2);
    settle();
    // Two rows of one word.
    const address rows[16] = {0, 0, 2, 0, buffer, 0, 4, 0, 0, 2, 0, other, 0, 8, 4, 2};
    launch(affine, stream);
    DO(cuMemcpy2DAsync_v2(rows, stream));
    DO(cuMemcpyDtoDAsync_v2(buffer, other + 8, 4, stream));
    launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(after(2, 2), "content");
}

// The epoch is one that the program was stopped for: it never waits.
static void never_waits(void) {
    void *const affine = function("affine");
    set(1);
    for (int i = 0; i < 1500; ++i) {
        launch(affine, stream);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(after(1, 1500), "content");
}

// Memory that is free at the fault, with addresses that others have; and some that no epoch has seen.
static void free_and_use_again(bool both) {
    address first, second;
    void *const affine = function("affine");
    DO(cuMemAlloc_v2(&first, 3 << 20));
    set(5);
    DO(cuMemcpyDtoDAsync_v2(first, buffer, 16, stream));
    DO(cuStreamSynchronize(stream));
    settle();
    launch(affine, stream);
    DO(cuMemcpyDtoDAsync_v2(buffer, first, 16, stream));
    DO(cuMemFree_v2(first));
    DO(cuMemAlloc_v2(&second, 3 << 20));
    if (second != first) wrong("the preload: other addresses");
    launch(affine, stream);
    DO(cuMemcpyDtoDAsync_v2(second, buffer, 16, stream));
    DO(cuMemsetD32Async(buffer, 9, 4, stream));
    DO(cuMemcpyDtoDAsync_v2(buffer, second, 16, stream));
    if (both) DO(cuMemFree_v2(second));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(16, "content");
    if (!both) DO(cuMemFree_v2(second));
}
static void freed_in_flight(void) { free_and_use_again(false); }
// At the fault neither is there.
static void freed_twice_in_flight(void) { free_and_use_again(true); }

// Memory with content that an epoch has seen is gone at the fault, and other memory is there. Another stream has work, so that no
// epoch comes between.
static void unmapped_in_flight(void) {
    const int properties[8] = {1, 1, 1, 0}, access[3] = {1, 0, 3};
    unsigned long long before, after_it;
    address at, beside;
    void *other, *const affine = function("affine");
    DO(cuStreamCreate(&other, 1));
    DO(cuMemAlloc_v2(&beside, 4096));
    DO(cuMemCreate(&before, 2 << 20, properties, 0));
    DO(cuMemAddressReserve(&at, 2 << 20, 0, 0, 0));
    DO(cuMemMap(at, 2 << 20, 0, before, 0));
    DO(cuMemSetAccess(at, 2 << 20, access, 1));
    DO(cuMemRelease(before));
    DO(cuMemsetD32Async(at, 5, 4, stream));
    DO(cuStreamSynchronize(stream));
    for (int i = 0; i < 3; ++i) settle();
    DO(cuMemsetD32Async(beside, 1, 4, other));
    launch(affine, stream);
    DO(cuMemcpyDtoDAsync_v2(buffer, at, 16, stream));
    DO(cuStreamSynchronize(stream));
    DO(cuMemUnmap(at, 2 << 20));
    DO(cuMemCreate(&after_it, 2 << 20, properties, 0));
    DO(cuMemMap(at, 2 << 20, 0, after_it, 0));
    DO(cuMemSetAccess(at, 2 << 20, access, 1));
    DO(cuMemRelease(after_it));
    DO(cuMemsetD32Async(at, 8, 4, stream));
    launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(16, "content");
    DO(cuMemcpyDtoDAsync_v2(buffer, at, 16, stream));
    DO(cuStreamSynchronize(stream));
    expect(8, "memory that was mapped last");
}

static void uninitialised(void) {
    address more;
    void *const affine = function("affine");
    set(1);
    settle();
    DO(cuMemAlloc_v2(&more, 3 << 20));
    for (int i = 0; i < 2; ++i) {
        const address n = 4, a = 3, b = 1;
        void *parameters[] = {&more, (void *)&n, (void *)&a, (void *)&b};
        DO(cuLaunchKernel(affine, 1, 1, 1, 4, 1, 1, 0, stream, parameters, NULL));
    }
    DO(cuMemcpyDtoDAsync_v2(buffer, more, 4, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

// What the host has seen would be another thing.
static void seen_and_diverged(void) {
    uint32_t got = 0;
    set(1);
    settle();
    launch(function("arbitrary"), stream);
    DO(cuStreamSynchronize(stream));
    DO(cuMemcpyDtoH_v2(&got, buffer, sizeof got));
    launch(function("affine"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void seen_later_and_diverged(void) {
    uint32_t *got;
    DO(cuMemHostAlloc((void **)&got, 4096, 0));
    set(1);
    settle();
    launch(function("arbitrary"), stream);
    DO(cuMemcpyDtoHAsync_v2(got, buffer, 4, stream));
    DO(cuStreamSynchronize(stream));
    *got = 0;  // used for something else
    launch(function("affine"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

// A program may look without a wait.
static void looked_at_and_diverged(void) {
    volatile uint32_t *got;
    DO(cuMemHostAlloc((void **)&got, 4096, 0));
    *got = 1;
    set(1);
    settle();
    launch(function("arbitrary"), stream);
    DO(cuMemcpyDtoHAsync_v2((void *)got, buffer, 4, stream));
    // One piece of work at each question.
    while (*got == 1) (void)cuStreamQuery(stream);
    launch(function("affine"), stream);
    fault_at_once();
    DO(cuCtxSynchronize());
    wrong("went on");
}

static void arbitrary_unseen(void) {
    uint32_t got = 0;
    set(1);
    settle();
    launch(function("arbitrary"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    DO(cuMemcpyDtoH_v2(&got, buffer, sizeof got));
    if (got == 1) wrong("content");
}

static void read_in_flight(void) {
    uint32_t *got;
    void *const affine = function("affine");
    DO(cuMemHostAlloc((void **)&got, 4096, 0));
    memset(got, 7, 4096);
    set(1);
    settle();
    launch(affine, stream);
    DO(cuMemcpyDtoHAsync_v2(got, buffer, 16, stream));
    launch(affine, stream);
    DO(cuMemcpyDtoHAsync_v2(got + 4, buffer, 16, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    if (got[0] != 4 || got[4] != 13) wrong("what came back");
}

// Memory that is freed, or no longer registered, with a copy to it that no call has shown to be over. The driver waits.
static void host_memory_freed(void) {
    uint32_t *host;
    void *const affine = function("affine");
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    set(1);
    settle();
    launch(affine, stream);
    DO(cuMemcpyDtoHAsync_v2(host, buffer, 16, stream));
    DO(cuMemFreeHost(host));
    DO(cuStreamSynchronize(stream));
    launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(13, "content");
}

static void host_memory_unregistered(void) {
    void *const pages = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DO(cuMemHostRegister_v2(pages, 4096, 0));
    set(1);
    settle();
    launch(function("affine"), stream);
    DO(cuMemcpyDtoHAsync_v2(pages, buffer, 16, stream));
    DO(cuMemHostUnregister(pages));
    munmap(pages, 4096);
    DO(cuStreamSynchronize(stream));
    launch(function("affine"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(13, "content");
}

// What came and went since the epoch: a module, a stream, an event; work in default streams; handles that are others' by now.
static void changed_in_flight(void) {
    void *more, *count, *other, *again, *event, *const affine = function("affine");
    const uint32_t two[4] = {2, 2, 2, 2};
    set(1);
    settle();
    DO(cuModuleLoadData(&more, image));
    DO(cuModuleGetFunction(&count, more, "count"));
    for (int i = 0; i < 3; ++i) launch(count, stream);
    DO(cuStreamCreate(&other, 1));
    DO(cuEventCreate(&event, 2));
    DO(cuEventRecord(event, stream));
    DO(cuStreamWaitEvent(other, event, 0));
    launch(affine, other);
    DO(cuStreamDestroy_v2(other));
    DO(cuEventDestroy_v2(event));
    DO(cuStreamCreate(&again, 0));
    launch(affine, again);
    launch(affine, NULL);
    DO(cuMemcpyHtoD_v2(buffer + 8, two, 8));
    launch(affine, (void *)1);
    launch(affine, again);
    fault_at_once();
    DO(cuCtxSynchronize());
    launch(count, again);
    DO(cuMemcpyDtoHAsync_v2(&writable, buffer, 16, again));
    DO(cuStreamSynchronize(again));
    // 44 from the counter, then as launched.
    const uint32_t *const got = (const uint32_t *)(const void *)writable;
    if (got[0] != 45 || got[1] != after(1, 5) || got[2] != after(2, 2)) wrong("content");
}

// By a function that waits where it copies to the host.
static void copied_in_other_direction(void) {
    address other;
    DO(cuMemAlloc_v2(&other, 4096));
    set(1);
    launch(function("affine"), NULL);
    DO(cuMemcpyDtoH_v2((void *)(uintptr_t)other, buffer, 16));
    fault();
    DO(cuCtxSynchronize());
    expect(4, "content");
}

// What is enqueued in the thread's stream alone, without a name for that.
static void set_in_own_stream(void) {
    set(1);
    settle();
    DO(cuMemsetD32_v2_ptds(buffer, 9, 4));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    DO(cuMemcpyDtoHAsync_v2(writable, buffer, 4, stream));
    DO(cuStreamSynchronize(stream));
    if (*(const uint32_t *)(const void *)writable != 9) wrong("content");
}

// A kernel that is repeated with another limit or attribute than it had.
static void limit_in_flight(void) {
    set(1);
    settle();
    launch(function("affine"), stream);
    DO(cuCtxSetLimit(0, 2048));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void cluster_in_flight(void) {
    void *const affine = function("affine");
    DO(cuFuncSetAttribute(affine, 11, 2));
    set(1);
    settle();
    launch(affine, stream);
    DO(cuFuncSetAttribute(affine, 11, 2));
    DO(cuFuncSetAttribute(affine, 11, 4));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

// As cuBLAS does before the first launch of a kernel: clusters of more than eight are allowed.
static void large_clusters_in_flight(void) {
    void *const affine = function("affine");
    set(1);
    settle();
    launch(affine, stream);
    DO(cuFuncSetAttribute(affine, 14, 1));
    DO(cuFuncSetAttribute(affine, 15, 1));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

// Functions by which a copy within the GPU can be made, too.
static void copied_by_other_names(void) {
    address other;
    DO(cuMemAlloc_v2(&other, 4096));
    set(6);
    settle();
    DO(cuMemcpyHtoDAsync_v2(other, (const void *)(uintptr_t)buffer, 16, stream));
    launch(function("affine"), stream);
    DO(cuMemcpyDtoHAsync_v2((void *)(uintptr_t)buffer, other, 16, stream));
    launch(function("affine"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(19, "content");
}

// What the guide says that a program may notice, and what it must not: an event in flight is over.
static void noticed(void) {
    void *first, *last, *created;
    float milliseconds;
    unsigned flags;
    DO(cuEventCreate(&first, 0));
    DO(cuEventCreate(&last, 0));
    set(1);
    settle();
    DO(cuEventRecord(first, stream));
    launch(function("affine"), stream);
    DO(cuEventRecord(last, stream));
    fault_at_once();
    DO(cuEventQuery(last));
    DO(cuEventSynchronize(first));
    expect(4, "content");
    if (cuEventElapsedTime(&milliseconds, first, last) == 0) wrong("time between events of the first driver");
    if (cuCtxCreate_v2(&created, 0, 0) != 801) wrong("another context");
    DO(cuEventRecord(first, stream));
    launch(function("affine"), stream);
    DO(cuEventRecord(last, stream));
    DO(cuEventSynchronize(last));
    DO(cuEventElapsedTime(&milliseconds, first, last));
    DO(cuMemHostAlloc(&created, 100, 0));
    DO(cuMemHostGetFlags(&flags, created));
    expect(13, "content");
}

// From the GPU to the host and back without a wait: what went back is not known when it is enqueued.
static void through_host_memory(void) {
    uint32_t *host;
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    set(2);
    settle();
    launch(function("affine"), stream);
    DO(cuMemcpyDtoHAsync_v2(host, buffer, 16, stream));
    DO(cuMemcpyHtoDAsync_v2(buffer, host, 16, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

// Two into the same memory.
static void read_twice(void) {
    uint32_t *host;
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    set(2);
    settle();
    for (int i = 0; i < 2; ++i) {
        launch(function("affine"), stream);
        DO(cuMemcpyDtoHAsync_v2(host, buffer, 16, stream));
    }
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

// What another stream's wait shows to be over, the program may have used for something else, if only for what was there before.
static void seen_by_another_stream(void) {
    uint32_t *got;
    void *other, *event, *const affine = function("affine");
    DO(cuMemHostAlloc((void **)&got, 4096, 0));
    DO(cuStreamCreate(&other, 1));
    DO(cuEventCreate(&event, 2));
    memset(got, 0, 4096);
    set(1);
    settle();
    launch(affine, stream);
    DO(cuMemcpyDtoHAsync_v2(got, buffer, 4, stream));
    DO(cuEventRecord(event, stream));
    DO(cuStreamWaitEvent(other, event, 0));
    DO(cuStreamSynchronize(other));
    if (*got != 4) wrong("the stand-in");
    *got = 0;
    launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(13, "content");
    if (*got != 0) wrong("what the program has put there");
}

// The same, by a copy to the GPU that has waited for what was before it.
static void seen_by_a_copy(void) {
    uint32_t *got;
    void *const affine = function("affine");
    const uint32_t two[4] = {2, 2, 2, 2};
    DO(cuMemHostAlloc((void **)&got, 4096, 0));
    memset(got, 0, 4096);
    set(1);
    settle();
    launch(affine, NULL);
    DO(cuMemcpyDtoHAsync_v2(got, buffer, 4, NULL));
    DO(cuMemcpyHtoD_v2(buffer, two, sizeof two));
    if (*got != 4) wrong("the stand-in");
    *got = 0;
    launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(7, "content");
    if (*got != 0) wrong("what the program has put there");
}

// Kernels could work there, and the one in flight does not.
static void host_address_is_there(void) {
    set(1);
    settle();
    launch(function("affine"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void kernel_in_host_memory(void) {
    uint32_t *host;
    const address n = 4, a = 3, b = 1;
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    void *parameters[] = {&host, (void *)&n, (void *)&a, (void *)&b};
    DO(cuLaunchKernel(function("affine"), 1, 1, 1, 4, 1, 1, 0, stream, parameters, NULL));
    DO(cuStreamSynchronize(stream));
    host_address_is_there();
}

// After the epoch, so that it has to be repeated: 3 x 1 + 1.
static void kernel_in_flight_in_host_memory(void) {
    uint32_t *host;
    const address n = 4, a = 3, b = 1;
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    void *parameters[] = {&host, (void *)&n, (void *)&a, (void *)&b};
    settle();
    DO(cuLaunchKernel(function("affine"), 1, 1, 1, 4, 1, 1, 0, stream, parameters, NULL));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void pointer_in_flight_to_host_memory(void) {
    uint32_t *host;
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    DO(cuMemcpyHtoD_v2(buffer, &host, sizeof host));
    DO(cuCtxSynchronize());
    settle();
    launch(function("indirect"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void host_address_in_gpu_memory(void) {
    uint32_t *host;
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    DO(cuMemcpyHtoD_v2(buffer + 64, &host, sizeof host));
    DO(cuCtxSynchronize());
    host_address_is_there();
}

static void host_address_in_constant(void) {
    address at;
    size_t size;
    uint32_t *host;
    DO(cuModuleGetGlobal_v2(&at, &size, module, "place"));
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    DO(cuMemcpyHtoD_v2(at, &host, sizeof host));
    DO(cuCtxSynchronize());
    host_address_is_there();
}

// A packed record: what is aligned in GPU memory is not in the host's.
static void host_address_in_record(void) {
    uint32_t *host;
    char record[16] = {0};
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    memcpy(record + 5, &host, sizeof host);
    DO(cuMemcpyHtoD_v2(buffer + 67, record + 0, 13));
    DO(cuCtxSynchronize());
    host_address_is_there();
}

static void host_address_in_rows(void) {
    uint32_t *host, *rows[4] = {NULL};
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    rows[2] = host;
    // Two rows of eight bytes, the second column.
    const address plane[16] = {0, 0, 1, (address)(uintptr_t)rows, 0, 0, 16, 0, 0, 2, 0, buffer + 64, 0, 8, 8, 2};
    DO(cuMemcpy2DAsync_v2(plane, stream));
    DO(cuCtxSynchronize());
    host_address_is_there();
}

// Pinned memory by its address for the GPU.
static void host_address_by_other_name(void) {
    uint32_t **host;
    DO(cuMemHostAlloc((void **)&host, 4096, 0));
    host[0] = (uint32_t *)host;
    DO(cuMemcpyDtoDAsync_v2(buffer + 64, (address)(uintptr_t)host, 8, stream));
    DO(cuCtxSynchronize());
    host_address_is_there();
}

// GPU memory of which nothing is known here: the host cannot read it, nor write to it.
static void memory_of_a_pool(void) {
    address pooled;
    set(1);
    settle();
    DO(cuMemAllocFromPoolAsync(&pooled, 4096, NULL, stream));
    launch(function("affine"), stream);
    DO(cuMemcpyAsync(pooled, buffer, 16, stream));
    DO(cuMemsetD32Async(buffer, 9, 4, stream));
    DO(cuMemcpyAsync(buffer, pooled, 16, stream));
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void one_kernel_in(address at) {
    const address n = 4, a = 3, b = 1;
    void *parameters[] = {&at, (void *)&n, (void *)&a, (void *)&b};
    DO(cuLaunchKernel(function("affine"), 1, 1, 1, 4, 1, 1, 0, stream, parameters, NULL));
}

enum { KEPT_OF_A_POOL = 4 };
static void *keep_all_of_pool(void) {
    unsigned long long all = ~0ULL;
    void *pool;
    DO(cuDeviceGetDefaultMemPool(&pool, 0));
    DO(cuMemPoolSetAttribute(pool, KEPT_OF_A_POOL, &all));
    return pool;
}

// As PyTorch with cudaMallocAsync: all memory in stream order, freed and used again, of which the pool keeps all.
static address compute_in_order(void) {
    address first, large, small;
    DO(cuMemAllocAsync(&first, 3 << 20, stream));
    DO(cuMemcpyDtoDAsync_v2(first, buffer, 16, stream));
    DO(cuMemFreeAsync(first, stream));
    DO(cuMemAllocAsync(&large, 3 << 20, stream));
    if (large != first) wrong("the memory was not used again");
    DO(cuMemAllocAsync(&small, 4096, stream));
    one_kernel_in(large);
    DO(cuMemcpyDtoDAsync_v2(small, large, 16, stream));
    DO(cuMemFreeAsync(large, stream));
    DO(cuMemcpyDtoDAsync_v2(buffer, small, 16, stream));
    return small;
}

static void ordered_memory_after(void *pool, address small) {
    unsigned long long kept = 0;
    address more;
    DO(cuMemPoolGetAttribute(pool, KEPT_OF_A_POOL, &kept));
    if (kept != ~0ULL) wrong("the setting of the pool");
    DO(cuMemAllocAsync(&more, 4096, stream));
    DO(cuMemcpyDtoDAsync_v2(more, small, 16, stream));
    one_kernel_in(more);
    DO(cuMemcpyDtoDAsync_v2(buffer, more, 16, stream));
    DO(cuMemFreeAsync(more, stream));
    DO(cuMemFreeAsync(small, stream));
    DO(cuStreamSynchronize(stream));
    DO(cuMemPoolTrimTo(pool, 0));
}

static void ordered_memory(void) {
    void *const pool = keep_all_of_pool();
    set(1);
    const address small = compute_in_order();
    DO(cuStreamSynchronize(stream));
    fault();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    ordered_memory_after(pool, small);
    expect(13, "content afterwards");
}

static void ordered_memory_in_flight(void) {
    void *const pool = keep_all_of_pool();
    set(1);
    settle();
    const address small = compute_in_order();
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    ordered_memory_after(pool, small);
    expect(13, "content afterwards");
}

// A node of the graph: it is there when that runs.
static void ordered_memory_in_a_capture(void) {
    address inside;
    void *graph;
    set(1);
    DO(cuStreamBeginCapture_v2(stream, 0));
    DO(cuMemAllocAsync(&inside, 3 << 20, stream));
    DO(cuMemsetD32Async(inside, 1, 4, stream));
    DO(cuMemFreeAsync(inside, stream));
    DO(cuStreamEndCapture(stream, &graph));
    fault();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

// The instance of what `fill` puts into a capture of the stream.
static void *instance_of(void (*fill)(void)) {
    void *graph, *instance;
    size_t nodes = 0;
    DO(cuStreamBeginCapture_v2(stream, 0));
    fill();
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphGetNodes(graph, NULL, &nodes));
    if (nodes == 0) wrong("nothing was captured");
    DO(cuGraphInstantiateWithFlags(&instance, graph, 1));
    DO(cuGraphDestroy(graph));
    return instance;
}

static void one_kernel(void) { launch(function("affine"), stream); }

// A kernel of which the second driver has none yet.
static void second_lane_faults_too(void) {
    void *const other = function("count");
    set(1);
    fault();
    launch(function("affine"), stream);
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    make_file(SECOND, "fault");
    launch(other, stream);
    DO(cuStreamSynchronize(stream));
}

static void graph_used_after(void) {
    void *const instance = instance_of(one_kernel);
    set(1);
    fault();
    DO(cuGraphLaunch(instance, stream));
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    DO(cuGraphExecDestroy(instance));
}

static void copy_and_kernel(void) {
    DO(cuMemcpyDtoDAsync_v2(buffer + 64, buffer, 16, stream));
    one_kernel();
}

// What needs the driver's memory fails from now on in the second one, once.
static void refuse_to_load(void) {
    refuse("fail-load_function");
    refuse("fail-cuGraphInstantiateWithFlags");
}

static void loaded_ahead(void) {
    void *const instance = instance_of(copy_and_kernel), *const scale = function("scale");
    set(1);
    settle_ahead();
    refuse_to_load();
    fault_at_once();
    DO(cuGraphLaunch(instance, stream));
    launch(function("affine"), stream);
    DO(cuStreamSynchronize(stream));
    expect(13, "content");
    launch(scale, stream);
    DO(cuStreamSynchronize(stream));
}

static void many_in_flight(void) {
    void *const affine = function("affine");
    set(1);
    settle_ahead();
    refuse("fail-have_room");
    for (int i = 0; i < 100; ++i) launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(after(1, 100), "content");
}

// It is never still, and has its kernels late.
static void loaded_ahead_while_busy(void) {
    void *const affine = function("affine");
    set(0);
    settle();
    void *const scale = function("scale"), *const instance = instance_of(copy_and_kernel);
    for (int i = 0; i < 200; ++i) {
        launch(affine, stream);
        DO(cuStreamSynchronize(stream));
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    set(1);
    refuse_to_load();
    launch(affine, stream);
    DO(cuGraphLaunch(instance, stream));
    launch(scale, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    DO(cuMemcpyDtoDAsync_v2(buffer, buffer + 64, 16, stream));
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

// The program destroys it after the takeover.
static void graph_of_freed_memory(void) {
    address more;
    const address own = buffer;
    DO(cuMemAlloc_v2(&more, 3 << 20));
    buffer = more;
    void *const instance = instance_of(copy_and_kernel);
    DO(cuMemFree_v2(more));
    buffer = own;
    set(1);
    settle_ahead();
    fault_at_once();
    launch(function("affine"), stream);
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    DO(cuGraphExecDestroy(instance));
}

#include "graphs_ahead.h"

// As PyTorch allocates in a capture: in relaxed mode, and from then on the graph computes there.
static void two_buffers_more(void) {
    int mode = 2;
    address small, large;
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    DO(cuMemAlloc_v2(&small, 4096));
    DO(cuMemAlloc_v2(&large, 3 << 20));
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    if (mode != 2) wrong("the mode of the thread");
    DO(cuMemcpyDtoDAsync_v2(small, buffer, 16, stream));
    DO(cuMemcpyDtoDAsync_v2(large + (2 << 20), small, 16, stream));
    one_kernel_in(large + (2 << 20));
    DO(cuMemcpyDtoDAsync_v2(buffer, large + (2 << 20), 16, stream));
}

static void graph_with_memory_of_its_own(void) {
    void *const instance = instance_of(two_buffers_more);
    set(1);
    settle();
    DO(cuGraphLaunch(instance, stream));
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    settle();
    DO(cuGraphLaunch(instance, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(13, "content afterwards");
    DO(cuGraphLaunch(instance, stream));
    DO(cuStreamSynchronize(stream));
    expect(40, "content of the end");
}

// The driver says so as well, and the program is none the worse.
static void memory_refused_in_a_capture(void) {
    void *graph = NULL;
    address more = 0;
    DO(cuStreamBeginCapture_v2(stream, 0));
    if (cuMemAlloc_v2(&more, 3 << 20) != 900 || more != 0) wrong("it was not refused");
    if (cuStreamEndCapture(stream, &graph) != 901) wrong("the capture goes on");
    set(1);
    fault();
    launch(function("affine"), stream);
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void graph_in_flight(void) {
    void *const instance = instance_of(one_kernel);
    set(1);
    settle();
    DO(cuGraphLaunch(instance, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    DO(cuGraphLaunch(instance, stream));
    DO(cuStreamSynchronize(stream));
    expect(13, "content afterwards");
}

// Three kernels, the second in a stream that comes in by an event and goes out by another one; all of these are gone afterwards.
static void fill_two_streams(void) {
    void *other, *forth, *back;
    DO(cuStreamCreate(&other, 1));
    DO(cuEventCreate(&forth, 2));
    DO(cuEventCreate(&back, 2));
    launch(function("affine"), stream);
    DO(cuEventRecord(forth, stream));
    DO(cuStreamWaitEvent(other, forth, 0));
    launch(function("affine"), other);
    DO(cuMemcpyDtoDAsync_v2(buffer + 64, buffer, 16, other));
    DO(cuEventRecord(back, other));
    DO(cuStreamWaitEvent(stream, back, 0));
    DO(cuMemsetD32Async(buffer + 16, 7, 1, stream));
    launch(function("affine"), stream);
    DO(cuEventDestroy_v2(forth));
    DO(cuEventDestroy_v2(back));
}

static void graph_of_two_streams(void) {
    void *const instance = instance_of(fill_two_streams);
    uint32_t got = 0;
    set(1);
    settle();
    DO(cuGraphLaunch(instance, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(40, "content");
    DO(cuMemcpyDtoH_v2(&got, buffer + 64, sizeof got));
    if (got != 13) wrong("what was copied");
    DO(cuMemcpyDtoH_v2(&got, buffer + 16, sizeof got));
    if (got != 7) wrong("what was set");
}

// Each thread's own stream has the same name: the first to begin is the last to end.
static pthread_barrier_t turn;
static void *instances[2];
static void *capture_in_own_stream(void *number) {
    const long me = (long)(intptr_t)number;
    void *graph;
    DO(cuCtxSetCurrent(context));
    if (me == 1) pthread_barrier_wait(&turn);
    DO(cuStreamBeginCapture_v2((void *)2, 1));
    DO(cuMemsetD32Async(buffer + 64 * (address)me, 5 + (unsigned)me, 4, (void *)2));
    if (me == 0) pthread_barrier_wait(&turn);
    if (me == 0) pthread_barrier_wait(&turn);
    DO(cuStreamEndCapture((void *)2, &graph));
    DO(cuGraphInstantiateWithFlags(&instances[me], graph, 0));
    if (me == 1) pthread_barrier_wait(&turn);
    return NULL;
}

static void graphs_of_threads(void) {
    pthread_t threads[2];
    uint32_t got[2];
    pthread_barrier_init(&turn, NULL, 2);
    for (long i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, capture_in_own_stream, (void *)(intptr_t)i);
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    DO(cuMemsetD32Async(buffer, 1, 32, stream));
    DO(cuStreamSynchronize(stream));
    fault();
    for (int i = 0; i < 2; ++i) {
        DO(cuGraphLaunch(instances[i], stream));
        DO(cuStreamSynchronize(stream));
        DO(cuMemcpyDtoH_v2(&got[0], buffer, 4));
        DO(cuMemcpyDtoH_v2(&got[1], buffer + 64, 4));
        if (got[0] != 5 || got[1] != (i == 0 ? 1 : 6)) wrong("another one's graph");
    }
}

static void graph_launched_by_kernels(void) {
    void *graph, *instance;
    DO(cuStreamBeginCapture_v2(stream, 0));
    one_kernel();
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiateWithFlags(&instance, graph, 4));
    fault();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void graph_of_unloaded(void) {
    instance_of(one_kernel);
    DO(cuModuleUnload(module));
    fault();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void captured_after(void) {
    set(1);
    fault();
    void *const instance = instance_of(one_kernel);
    DO(cuGraphLaunch(instance, stream));
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void settled_kernel(void) {
    one_kernel();
    settle();
}

// What looks at the program meanwhile would break its capture.
static void captured_for_long(void) {
    set(1);
    void *const instance = instance_of(settled_kernel);
    settle();
    DO(cuGraphLaunch(instance, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void copied_from_host(void) {
    static uint32_t two[4] = {2, 2, 2, 2};
    DO(cuMemcpyHtoDAsync_v2(buffer, two, sizeof two, stream));
}

static void graph_with_host_memory(void) {
    instance_of(copied_from_host);
    fault();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void capture_at_fault(void) {
    set(1);
    settle();
    DO(cuStreamBeginCapture_v2(stream, 0));
    fault_at_once();
    launch(function("affine"), stream);
    wrong("went on");
}

static void instance_ended_in_flight(void) {
    void *const instance = instance_of(one_kernel);
    set(1);
    settle();
    DO(cuGraphLaunch(instance, stream));
    DO(cuGraphExecDestroy(instance));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void unloaded_in_flight(void) {
    void *more, *affine;
    DO(cuModuleLoadData(&more, image));
    DO(cuModuleGetFunction(&affine, more, "affine"));
    set(1);
    settle();
    launch(affine, stream);
    DO(cuStreamSynchronize(stream));
    DO(cuModuleUnload(more));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void mapped_again(void) {
    const int properties[8] = {1, 1, 1, 0}, access[3] = {1, 0, 3};
    unsigned long long handle;
    address at;
    DO(cuMemCreate(&handle, 2 << 20, properties, 0));
    DO(cuMemAddressReserve(&at, 4 << 20, 0, 0, 0));
    DO(cuMemMap(at, 2 << 20, 0, handle, 0));
    DO(cuMemSetAccess(at, 2 << 20, access, 1));
    set(1);
    settle();
    launch(function("affine"), stream);
    DO(cuMemUnmap(at, 2 << 20));
    DO(cuMemMap(at + (2 << 20), 2 << 20, 0, handle, 0));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

// The same memory at two addresses: what is written by one is there by the other, which had no access so far.
static void mapped_twice(void) {
    const int properties[8] = {1, 1, 1, 0}, access[3] = {1, 0, 3};
    unsigned long long handle;
    address at;
    DO(cuMemCreate(&handle, 2 << 20, properties, 0));
    DO(cuMemAddressReserve(&at, 4 << 20, 0, 0, 0));
    DO(cuMemMap(at, 2 << 20, 0, handle, 0));
    DO(cuMemMap(at + (2 << 20), 2 << 20, 0, handle, 0));
    DO(cuMemSetAccess(at + (2 << 20), 2 << 20, access, 1));
    DO(cuMemsetD32Async(at + (2 << 20), 7, 4, stream));
    DO(cuStreamSynchronize(stream));
    settle();
    DO(cuMemUnmap(at + (2 << 20), 2 << 20));
    DO(cuMemSetAccess(at, 2 << 20, access, 1));
    DO(cuMemcpyDtoDAsync_v2(buffer, at, 16, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(7, "content");
}

// Registers of another device: to read them may change them.
static void device_registered(void) {
    void *const pages = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    DO(cuMemHostRegister_v2(pages, 4096, 4));
    set(1);
    fault();
    DO(cuCtxSynchronize());
    wrong("went on");
}

// A launch attribute that nothing here knows: it may hold a handle.
static void unknown_attribute(void) {
    const address n = 4, a = 3, b = 1;
    void *parameters[] = {&buffer, (void *)&n, (void *)&a, (void *)&b};
    struct { int id, pad; char value[64]; } attribute = {200, 0, {1}};
    struct { unsigned sizes[7]; void *stream; void *attributes; unsigned count; } config = {{1, 1, 1, 4, 1, 1, 0}, stream, &attribute, 1};
    set(1);
    settle();
    DO(cuLaunchKernelEx(&config, function("affine"), parameters, NULL));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void much_copied(void) {
    address more;
    const size_t size = 100 << 20;
    char *const bytes = calloc(1, size);
    DO(cuMemAlloc_v2(&more, size));
    set(1);
    settle();
    launch(function("affine"), stream);
    for (int i = 0; i < 3; ++i) DO(cuMemcpyHtoDAsync_v2(more, bytes, size, stream));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    wrong("went on");
}

static void *fault_when_paused(void *pause) {
    await_file(FIRST, "paused");
    fault_at_once();
    unlink(lane_file(FIRST, pause));
    return NULL;
}

// The fault comes when the driver has waited, and before the program knows.
static void fault_behind_a_wait(void) {
    uint32_t *got;
    pthread_t beside;
    DO(cuMemHostAlloc((void **)&got, 4096, 0));
    *got = 0;
    set(1);
    settle();
    launch(function("affine"), stream);
    DO(cuMemcpyDtoHAsync_v2(got, buffer, 4, stream));
    make_file(FIRST, "pause-wait");
    pthread_create(&beside, NULL, fault_when_paused, "pause-wait");
    DO(cuStreamSynchronize(stream));
    pthread_join(beside, NULL);
    if (*got != 4) wrong("what came back");
    *got = 0;
    launch(function("affine"), stream);
    DO(cuStreamSynchronize(stream));
    if (*got != 0) wrong("what the program has put there");
}

// The fault comes when the copy is enqueued, and before anything can be enqueued behind it.
static void fault_behind_a_copy(void) {
    uint32_t *got;
    pthread_t beside;
    DO(cuMemHostAlloc((void **)&got, 4096, 0));
    *got = 0;
    set(1);
    settle();
    launch(function("affine"), stream);
    make_file(FIRST, "pause-copy");
    pthread_create(&beside, NULL, fault_when_paused, "pause-copy");
    DO(cuMemcpyDtoHAsync_v2(got, buffer, 4, stream));
    pthread_join(beside, NULL);
    DO(cuStreamSynchronize(stream));
    if (*got != 4) wrong("what came back");
}

// Idle, and the fault comes while the copy of the state is made: what is there is the state.
static void fault_in_an_epoch(void) {
    void *const affine = function("affine");
    pthread_t beside;
    set(1);
    settle();
    make_file(FIRST, "pause-between");
    pthread_create(&beside, NULL, fault_when_paused, "pause-between");
    launch(affine, stream);
    DO(cuStreamSynchronize(stream));
    pthread_join(beside, NULL);
    launch(affine, stream);
    DO(cuStreamSynchronize(stream));
    expect(13, "content");
}

// More than what the copies leave.
static void memory_for_the_program(void) {
    address more;
    set(1);
    settle();
    DO(cuMemAlloc_v2(&more, 60 << 20));
    DO(cuMemcpyDtoDAsync_v2(more + (50 << 20), buffer, 16, stream));
    DO(cuStreamSynchronize(stream));
    // It is not the driver's own, which could not be taken over.
    fault();
    DO(cuStreamSynchronize(stream));
    expect(1, "content");
}

// The last epoch had no memory to copy; what was freed since is kept all the same.
static void memory_for_the_program_again(void) {
    address more;
    DO(cuStreamSynchronize(stream));
    settle();
    DO(cuMemAlloc_v2(&more, 40 << 20));
    DO(cuMemFree_v2(more));
    DO(cuMemAlloc_v2(&more, 40 << 20));
    fault();
    DO(cuStreamSynchronize(stream));
}

// Freed by a program that does nothing more: others may want it.
static void memory_for_others(void) {
    address more;
    size_t before, later, all;
    set(1);
    settle();
    DO(cuMemGetInfo_v2(&before, &all));
    DO(cuMemAlloc_v2(&more, 40 << 20));
    set(1);
    settle();
    DO(cuMemFree_v2(more));
    for (int i = 0; i < 3; ++i) settle();
    DO(cuMemGetInfo_v2(&later, &all));
    if (later != before) wrong("it is kept");
}

// What is refused for good needs no copy.
static void copy_of_what_is_refused(void) {
    const int properties[8] = {1, 1, 1, 0};
    unsigned long long handle;
    size_t before, later, all;
    int fd = -1;
    set(1);
    settle();
    DO(cuMemGetInfo_v2(&before, &all));
    DO(cuMemCreate(&handle, 2 << 20, properties, 0));
    DO(cuMemExportToShareableHandle(&fd, handle, 1, 0));
    DO(cuMemRelease(handle));
    close(fd);
    settle();
    DO(cuMemGetInfo_v2(&later, &all));
    if (later <= before) wrong("it is kept");
}

// Without a fault, and without the second driver.
static void passed_on(void) {
    const char *const wanted = getenv("PROGRAM_DRIVER_VERSION");
    void *const affine = function("affine");
    int version;
    set(1);
    launch(affine, stream);
    DO(cuCtxSynchronize());
    expect(4, "content");
    DO(cuDriverGetVersion(&version));
    if (version != (wanted != NULL ? atoi(wanted) : 13000)) wrong("version");
    // Programs tell by that what a driver can do.
    if (dlsym(RTLD_DEFAULT, "cuCheckpointProcessLock") != NULL) wrong("a function that this driver has not");
    if (dlsym(RTLD_DEFAULT, "cuDriverGetVersion") == NULL) wrong("a function that this driver has");
}

// Its own kernel faults, with work before and behind it.
static void culprit(void) {
    void *const affine = function("affine");
    set(1);
    settle();
    launch(affine, stream);
    launch(function("trap"), stream);
    launch(affine, stream);
    DO(cuStreamSynchronize(stream));
}

// Every time in another stream: in the one of the log it is behind work that was over.
static void culprit_behind_what_was_over(void) {
    void *other, *const affine = function("affine");
    DO(cuStreamCreate(&other, 1));
    set(1);
    settle();
    for (int i = 0; i < 5; ++i) launch(affine, stream);
    DO(cuStreamSynchronize(stream));
    launch(function("trap"), other);
    launch(affine, stream);
    DO(cuStreamSynchronize(other));
}

// A kernel with an address of code in memory, which is another one in each copy of the driver: it ran.
static void address_of_code_seen(void) {
    void *const own = function("own_code"), *const affine = function("affine");
    DO(cuMemcpyHtoD_v2(buffer, &context, sizeof context));
    DO(cuCtxSynchronize());
    settle();
    launch(own, stream);
    DO(cuStreamSynchronize(stream));
    launch(own, stream);
    launch(affine, stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
}

static void endless_when_alone(void) {
    set(1);
    settle();
    launch(function("endless_alone"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(1, "content");
}

// As cuBLAS asks for its constants: in a library without kernels of its own. It is first asked for behind the epoch.
static void variable_asked_in_flight(void) {
    address at, again;
    size_t size;
    void *library;
    set(1);
    settle();
    DO(cuLibraryLoadData(&library, image_of_variables, NULL, NULL, 0, NULL, NULL, 0));
    DO(cuLibraryGetGlobal(&at, &size, library, "factor"));
    DO(cuMemcpyDtoDAsync_v2(buffer, at, 4, stream));
    launch(function("affine"), stream);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(16, "content");
    DO(cuLibraryGetGlobal(&again, &size, library, "factor"));
    if (again != at || size != 4) wrong("address");
}

// A variable that the repetition changes, a kernel with an attribute, streams and events: all of it is the next copy's as well.
static void used_after_repetition(void) {
    address at;
    size_t size;
    void *event, *other, *const count = function("count"), *const affine = function("affine"), *const scale = function("scale");
    const uint32_t seven = 7;
    DO(cuModuleGetGlobal_v2(&at, &size, module, "factor"));
    DO(cuEventCreate(&event, 2));
    DO(cuStreamCreate(&other, 1));
    launch(scale, stream);
    DO(cuStreamSynchronize(stream));
    settle();
    DO(cuFuncSetAttribute(affine, 8, 65536));
    DO(cuMemcpyHtoDAsync_v2(at, &seven, sizeof seven, stream));
    for (int i = 0; i < 5; ++i) launch(count, stream);
    DO(cuEventRecord(event, stream));
    DO(cuStreamWaitEvent(other, event, 0));
    launch(affine, other);
    fault_at_once();
    DO(cuStreamSynchronize(other));
    expect(after(46, 1), "content");
    for (int i = 0; i < 3; ++i) launch(count, other);
    DO(cuEventRecord(event, other));
    DO(cuEventSynchronize(event));
    expect(49, "counter");
    launch(scale, stream);
    DO(cuStreamSynchronize(stream));
    expect(7, "constant");
    const address n = 4, a = 3, b = 1;
    void *parameters[] = {&buffer, (void *)&n, (void *)&a, (void *)&b};
    DO(cuLaunchKernel(affine, 1, 1, 1, 4, 1, 1, 60000, stream, parameters, NULL));
    DO(cuStreamSynchronize(stream));
    expect(22, "content");
}

#include "rounds.h"

static const struct { const char *name; void (*run)(void); } cases[] = {
#define CASE(name) {#name, name}
    CASE(handles_used_again), CASE(image_in_writable_memory), CASE(image_in_a_file), CASE(destroyed_after), CASE(empty_copy), CASE(exported),
    CASE(exported_by_ipc), CASE(handle_asked), CASE(enumerated), CASE(constant_written_after), CASE(variable_with_address),
    CASE(context_reset), CASE(another_device), CASE(recorded_meanwhile), CASE(late_launch), CASE(registered_is_not_freed), CASE(forked),
    CASE(many_events), CASE(nothing), CASE(passed_on), CASE(created_after),
    CASE(queued), CASE(launched_otherwise), CASE(variable_in_flight), CASE(constant_in_flight), CASE(rows_in_flight),
    CASE(never_waits), CASE(freed_in_flight), CASE(freed_twice_in_flight), CASE(uninitialised), CASE(seen_and_diverged), CASE(seen_later_and_diverged),
    CASE(looked_at_and_diverged), CASE(arbitrary_unseen), CASE(read_in_flight), CASE(kernel_in_host_memory), CASE(kernel_in_flight_in_host_memory),
    CASE(pointer_in_flight_to_host_memory),
    CASE(host_address_in_gpu_memory), CASE(unloaded_in_flight), CASE(mapped_again), CASE(much_copied),
    CASE(fault_in_an_epoch), CASE(memory_for_the_program), CASE(unmapped_in_flight), CASE(through_host_memory), CASE(copied_by_other_names), CASE(changed_in_flight), CASE(host_memory_freed), CASE(host_memory_unregistered), CASE(much_memory), CASE(noticed), CASE(read_twice),
    CASE(constant_written_first), CASE(seen_by_another_stream), CASE(seen_by_a_copy), CASE(stream_of_ended_thread),
    CASE(host_address_in_constant), CASE(host_address_in_record), CASE(host_address_in_rows), CASE(host_address_by_other_name),
    CASE(memory_of_a_pool), CASE(ordered_memory), CASE(ordered_memory_in_flight), CASE(ordered_memory_in_a_capture), CASE(memory_for_the_program_again), CASE(memory_for_others), CASE(copy_of_what_is_refused),
    CASE(copied_in_other_direction), CASE(unknown_attribute), CASE(mapped_twice), CASE(device_registered), CASE(fault_behind_a_wait), CASE(fault_behind_a_copy), CASE(set_in_own_stream), CASE(limit_in_flight), CASE(cluster_in_flight), CASE(large_clusters_in_flight), CASE(graph_used_after), CASE(loaded_ahead), CASE(many_in_flight), CASE(loaded_ahead_while_busy), CASE(graph_of_freed_memory),
    CASE(instance_made_anew), CASE(instance_made_anew_at_fault), CASE(instance_ended_meanwhile), CASE(instance_ended_ahead), CASE(instance_ended_at_fault),
    CASE(instance_updated), CASE(instance_updated_meanwhile), CASE(instance_updated_after), CASE(unloaded_meanwhile), CASE(memory_mapped_anew), CASE(memory_mapped_anew_at_fault), CASE(memory_mapped_between), CASE(limit_in_a_move),
    CASE(attribute_of_captured), CASE(limit_of_instance), CASE(found_otherwise), CASE(instance_when_refused), CASE(instance_of_variable), CASE(second_lane_faults_too),
    CASE(graph_in_flight), CASE(graph_with_memory_of_its_own), CASE(memory_refused_in_a_capture), CASE(graph_of_two_streams), CASE(captured_after), CASE(captured_for_long), CASE(graph_with_host_memory),
    CASE(capture_at_fault), CASE(graphs_of_threads), CASE(graph_launched_by_kernels), CASE(graph_of_unloaded), CASE(instance_ended_in_flight),
    CASE(mapped_ahead), CASE(mapped_ahead_in_flight), CASE(freed_is_free), CASE(freed_is_free_when_asked), CASE(freed_is_free_when_refused), CASE(freed_and_wanted),
    CASE(address_used_again), CASE(address_used_again_in_flight), CASE(host_memory_used_again), CASE(host_memory_is_left), CASE(access_given_later), CASE(access_taken), CASE(placed_while_another_reserves),
    CASE(culprit), CASE(culprit_behind_what_was_over), CASE(address_of_code_seen), CASE(endless_when_alone), CASE(used_after_repetition), CASE(variable_asked_in_flight),
    CASE(made_between), CASE(found_again), CASE(handles_between), CASE(variables_between), CASE(limit_between), CASE(without_end),
};

static void *read_file(const char *path) {
    FILE *const f = fopen(path, "rb");
    char *const room = calloc(1, 1 << 20);
    if (f == NULL || room == NULL || fread(room, 1, 1 << 20, f) == 0) exit(2);
    fclose(f);
    return room;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    const char *const which = getenv("PROGRAM_DEVICE");
    image = read_file(argv[2]);
    image_with_pointers = read_file(argv[3]);
    image_of_variables = read_file(argv[4]);
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, which != NULL ? atoi(which) : 0));
    DO(cuCtxSetCurrent(context));
    DO(cuStreamCreate(&stream, 1));
    DO(cuModuleLoadData(&module, image));
    if (getenv("PROGRAM_HAS_NOTHING") == NULL) DO(cuMemAlloc_v2(&buffer, 4096));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        if (strcmp(cases[i].name, argv[1]) != 0) continue;
        cases[i].run();
        printf("survived\n");
        return 0;
    }
    return 2;
}
