// Cases for instances of graphs that a hot second driver has made before the fault.
#pragma once

#include "asks.h"

// The second driver stands still in its next call of that kind (meet_in in stand_in.c).
static void meet(const char *what) {
    char name[64];
    snprintf(name, sizeof name, "in-%s", what);
    if (mkfifo(lane_file(SECOND, name), 0600) != 0) wrong("the fifo");
    snprintf(name, sizeof name, "on-%s", what);
    if (mkfifo(lane_file(SECOND, name), 0600) != 0) wrong("the fifo");
}

static void await_met(const char *what) {
    char name[64];
    snprintf(name, sizeof name, "in-%s", what);
    close(open(lane_file(SECOND, name), O_RDONLY | O_CLOEXEC));
    unlink(lane_file(SECOND, name));
}

static void let_on(const char *what) {
    char name[64];
    snprintf(name, sizeof name, "on-%s", what);
    close(open(lane_file(SECOND, name), O_WRONLY | O_CLOEXEC));
    unlink(lane_file(SECOND, name));
}

// Whether a call that was to fail was made.
static bool was_refused(const char *call) { return access(lane_file(SECOND, call), F_OK) != 0; }

// The thread that looks ends what is left.
static void await_end_of_looks(void) {
    for (int i = 0; i < 20000 && !looker_has_ended(); ++i) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void two_kernels(void) {
    one_kernel();
    one_kernel();
}

static void launch_and_expect(void *instance, uint32_t value) {
    DO(cuGraphLaunch(instance, stream));
    DO(cuStreamSynchronize(stream));
    expect(value, "content");
}

// From now on the second driver makes no instance.
static void go_over_with(void *instance, uint32_t value) {
    refuse("fail-cuGraphInstantiateWithFlags");
    fault_at_once();
    launch_and_expect(instance, value);
    if (was_refused("fail-cuGraphInstantiateWithFlags")) wrong("it was not made ahead");
}

// None of them waits for the second driver.
static void call_much(void) {
    address more;
    size_t left, all;
    void *other, *event, *another, *found;
    DO(cuStreamCreate(&other, 1));
    DO(cuEventCreate(&event, 2));
    DO(cuModuleLoadData(&another, image));
    DO(cuModuleGetFunction(&found, another, "affine"));
    DO(cuMemAlloc_v2(&more, 3 << 20));
    launch(found, other);
    DO(cuEventRecord(event, other));
    DO(cuStreamSynchronize(other));
    DO(cuEventSynchronize(event));
    DO(cuEventDestroy_v2(event));
    DO(cuStreamDestroy_v2(other));
    DO(cuMemFree_v2(more));
    DO(cuMemGetInfo_v2(&left, &all));
    DO(cuGraphExecDestroy(instance_of(two_kernels)));
    set(1);
}

static void instance_made_anew(void) {
    meet("instantiate");
    void *const instance = instance_of(one_kernel);
    await_met("instantiate");
    call_much();
    DO(cuGraphExecDestroy(instance));
    if (instance_of(two_kernels) != instance) wrong("the stand-in");
    refuse("fail-cuGraphExecDestroy");
    let_on("instantiate");
    settle_ahead();
    if (!was_refused("fail-cuGraphExecDestroy")) wrong("it is kept");
    go_over_with(instance, 13);
    DO(cuGraphExecDestroy(instance));
}

// At the takeover the second driver's thread has just made it.
static void instance_made_anew_at_fault(void) {
    set(1);
    settle();
    meet("instantiate");
    void *const instance = instance_of(one_kernel);
    await_met("instantiate");
    DO(cuGraphExecDestroy(instance));
    if (instance_of(two_kernels) != instance) wrong("the stand-in");
    fault_at_once();
    let_on("instantiate");
    launch_and_expect(instance, 13);
}

static void instance_ended_meanwhile(void) {
    meet("instantiate");
    void *const instance = instance_of(one_kernel);
    await_met("instantiate");
    DO(cuGraphExecDestroy(instance));
    refuse("fail-cuGraphExecDestroy");
    let_on("instantiate");
    settle_ahead();
    if (!was_refused("fail-cuGraphExecDestroy")) wrong("it is kept");
    set(1);
    fault();
    launch(function("affine"), stream);
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void instance_ended_ahead(void) {
    void *const instance = instance_of(one_kernel);
    set(1);
    settle_ahead();
    refuse("fail-cuGraphExecDestroy");
    DO(cuGraphExecDestroy(instance));
    settle_ahead();
    if (!was_refused("fail-cuGraphExecDestroy")) wrong("it is kept");
    // The same handle.
    if (instance_of(two_kernels) != instance) wrong("the stand-in");
    settle_ahead();
    go_over_with(instance, 13);
    refuse("fail-cuGraphExecDestroy");
    if (cuGraphExecDestroy(instance) == 0) wrong("it is not the program's own");
}

// The program ended it just before the fault.
static void instance_ended_at_fault(void) {
    void *const instance = instance_of(one_kernel);
    set(1);
    settle_ahead();
    refuse("fail-cuGraphExecDestroy");
    DO(cuGraphExecDestroy(instance));
    fault_at_once();
    launch(function("affine"), stream);
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
    await_end_of_looks();
    if (!was_refused("fail-cuGraphExecDestroy")) wrong("it is kept");
}

static void *graph_of(void (*fill)(void)) {
    void *graph;
    DO(cuStreamBeginCapture_v2(stream, 0));
    fill();
    DO(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void instance_updated(void) {
    void *const graph = graph_of(two_kernels), *const instance = instance_of(one_kernel);
    char result[64];
    set(1);
    settle_ahead();
    DO(cuGraphExecUpdate_v2(instance, graph, result));
    fault();
    launch_and_expect(instance, 13);
}

static void instance_updated_meanwhile(void) {
    void *const graph = graph_of(two_kernels);
    char result[64];
    meet("instantiate");
    void *const instance = instance_of(one_kernel);
    await_met("instantiate");
    DO(cuGraphExecUpdate_v2(instance, graph, result));
    let_on("instantiate");
    set(1);
    fault();
    launch_and_expect(instance, 13);
}

static void instance_updated_after(void) {
    void *const graph = graph_of(two_kernels), *const instance = instance_of(one_kernel);
    char result[64];
    set(1);
    settle_ahead();
    go_over_with(instance, 4);
    DO(cuGraphUpload(instance, stream));
    DO(cuGraphExecUpdate_v2(instance, graph, result));
    launch_and_expect(instance, 40);
}

// The kernel that its capture launches is no more.
static void unloaded_meanwhile(void) {
    meet("capture");
    void *const instance = instance_of(one_kernel);
    await_met("capture");
    DO(cuModuleUnload(module));
    let_on("capture");
    settle_ahead();
    fault_at_once();
    DO(cuGraphLaunch(instance, stream));
    DO(cuStreamSynchronize(stream));
}

static address placed;
static void from_placed(void) {
    DO(cuMemcpyDtoDAsync_v2(buffer, placed, 16, stream));
    one_kernel();
}

static void place_new(uint32_t value) {
    map_new(placed);
    DO(cuMemSetAccess(placed, 2 << 20, all_access, 1));
    DO(cuMemsetD32Async(placed, value, 4, stream));
}

static void *instance_of_placed(void) {
    make_file(SECOND, "bound");
    DO(cuMemAddressReserve(&placed, 2 << 20, 0, 0, 0));
    place_new(5);
    void *const instance = instance_of(from_placed);
    DO(cuStreamSynchronize(stream));
    settle_ahead();
    settle_ahead();
    refuse("fail-cuGraphExecDestroy");
    DO(cuMemUnmap(placed, 2 << 20));
    place_new(8);
    return instance;
}

static void memory_mapped_anew(void) {
    void *const instance = instance_of_placed();
    DO(cuStreamSynchronize(stream));
    settle_ahead();
    settle_ahead();
    if (!was_refused("fail-cuGraphExecDestroy")) wrong("it was not made ahead, or is kept");
    go_over_with(instance, 25);
}

// The second driver has the first memory there, and an instance of it.
static void memory_mapped_anew_at_fault(void) {
    void *const instance = instance_of_placed();
    fault_at_once();
    launch_and_expect(instance, 25);
    await_end_of_looks();
    if (!was_refused("fail-cuGraphExecDestroy")) wrong("it was not made ahead, or is kept");
}

// Other memory was there since the epoch, for less than a look: the repetition maps it, and unmaps it again.
static void memory_mapped_between(void) {
    make_file(SECOND, "bound");
    DO(cuMemAddressReserve(&placed, 2 << 20, 0, 0, 0));
    set(1);
    settle();
    place_new(5);
    DO(cuStreamSynchronize(stream));
    DO(cuMemUnmap(placed, 2 << 20));
    place_new(8);
    void *const instance = instance_of(from_placed);
    DO(cuStreamSynchronize(stream));
    settle_ahead();
    settle_ahead();
    refuse("fail-cuGraphExecDestroy");
    fault_at_once();
    launch_and_expect(instance, 25);
    await_end_of_looks();
    if (!was_refused("fail-cuGraphExecDestroy")) wrong("it was not made ahead, or is kept");
}

static void *large;
static void large_kernel(void) {
    const address n = 4, a = 3, b = 1;
    void *parameters[] = {&buffer, (void *)&n, (void *)&a, (void *)&b};
    DO(cuLaunchKernel(large, 1, 1, 1, 4, 1, 1, 60000, stream, parameters, NULL));
}

// It is loaded ahead before.
static void attribute_of_captured(void) {
    large = function("affine");
    set(1);
    settle_ahead();
    DO(cuFuncSetAttribute(large, 8, 65536));
    void *const instance = instance_of(large_kernel);
    settle_ahead();
    go_over_with(instance, 4);
}

static void limit_of_instance(void) {
    make_file(SECOND, "bound");
    set(1);
    settle_ahead();
    DO(cuCtxSetLimit(0, 4096));
    void *const instance = instance_of(one_kernel);
    settle_ahead();
    go_over_with(instance, 4);
}

// A move makes the instance while the program goes on.
static void limit_in_a_move(void) {
    const struct timespec pause = {.tv_nsec = 1000000};
    size_t limit = 0;
    set(1);
    instance_of(one_kernel);
    settle();
    meet("instantiate");
    if (!ask_move(1, 0)) wrong("the request");
    await_met("instantiate");
    DO(cuCtxSetLimit(0, 8192));
    let_on("instantiate");
    for (int i = 0; i < 60000 && move_answer(1) == 0; ++i) nanosleep(&pause, NULL);
    DO(cuCtxGetLimit(&limit, 0));
    if (limit != 8192) wrong("the limit");
}

static void *kernel;
static void kernel_of_library(void) { launch(kernel, stream); }

// Its kernel is found in another way behind the capture: for the stand-in that is the same handle.
static void found_otherwise(void) {
    void *library, *found;
    DO(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    DO(cuLibraryGetKernel(&kernel, library, "affine"));
    meet("capture");
    void *const instance = instance_of(kernel_of_library);
    await_met("capture");
    DO(cuKernelGetFunction(&found, kernel));
    if (found != kernel) wrong("the stand-in");
    let_on("capture");
    set(1);
    settle_ahead();
    go_over_with(instance, 4);
}

// A program that would be refused has none made.
static void instance_when_refused(void) {
    const int properties[8] = {1, 1, 1, 0};
    unsigned long long handle;
    int fd = -1;
    set(1);
    DO(cuMemCreate(&handle, 2 << 20, properties, 0));
    DO(cuMemExportToShareableHandle(&fd, handle, 1, 0));
    close(fd);
    refuse("fail-cuGraphInstantiateWithFlags");
    instance_of(one_kernel);
    settle_ahead();
    if (was_refused("fail-cuGraphInstantiateWithFlags")) wrong("it was made");
}

static address factor;
static void from_factor(void) {
    DO(cuMemcpyDtoDAsync_v2(buffer, factor, 4, stream));
    one_kernel();
}

// What its address is in the second driver is known at the takeover.
static void instance_of_variable(void) {
    size_t size;
    DO(cuModuleGetGlobal_v2(&factor, &size, module, "factor"));
    void *const instance = instance_of(from_factor);
    set(1);
    settle_ahead();
    fault_at_once();
    launch_and_expect(instance, 16);
}
