// What a program makes between two faults is there after the second one, as what it made before the first. Included by cases.c, which
// has the functions of the driver and what is used here.
#pragma once

// The lane at hand faults, the first one and the other in turn; it serves again to drivers that come to it later.
static void fault_again(void) {
    static unsigned faults;
    const unsigned before = faults / 2;
    const char *const lane = faults++ % 2 == 0 ? FIRST : SECOND;
    char name[32] = "fault", number[16];
    if (before > 0) snprintf(name, sizeof name, "fault-%u", before);
    snprintf(number, sizeof number, "%u", before + 1);
    settle();
    const int fd = open(lane_file(lane, "incarnation"), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (write(fd, number, strlen(number)) < 0) wrong("the lane");
    close(fd);
    make_file(lane, name);
}

typedef struct {
    void *stream, *event, *module, *affine, *instance, *pinned;
    address buffer;
} all_kinds;

static all_kinds make_all(void) {
    all_kinds made;
    DO(cuStreamCreate(&made.stream, 1));
    DO(cuEventCreate(&made.event, 2));
    DO(cuModuleLoadData(&made.module, image));
    DO(cuModuleGetFunction(&made.affine, made.module, "affine"));
    DO(cuFuncSetAttribute(made.affine, 8, 65536));
    DO(cuMemAlloc_v2(&made.buffer, 3 << 20));
    DO(cuMemHostAlloc(&made.pinned, 4096, 0));
    made.instance = instance_of(one_kernel);
    return made;
}

// The kernel with more shared memory than it may have without its attribute.
static void use_all(const all_kinds *made, uint32_t value) {
    const address n = 4, a = 3, b = 1;
    const void *parameters[] = {&made->buffer, &n, &a, &b};
    uint32_t *const got = made->pinned;
    DO(cuMemsetD32Async(made->buffer, value, 4, made->stream));
    DO(cuLaunchKernel(made->affine, 1, 1, 1, 4, 1, 1, 60000, made->stream, (void **)(uintptr_t)parameters, NULL));
    DO(cuMemcpyDtoHAsync_v2(got, made->buffer, 16, made->stream));
    DO(cuEventRecord(made->event, made->stream));
    DO(cuEventSynchronize(made->event));
    if (got[3] != 3 * value + 1) wrong("content of what was made");
    set(value);
    DO(cuGraphLaunch(made->instance, stream));
    DO(cuStreamSynchronize(stream));
    expect(3 * value + 1, "content of a graph");
}

static void end_all(const all_kinds *made) {
    DO(cuGraphExecDestroy(made->instance));
    DO(cuEventDestroy_v2(made->event));
    DO(cuStreamDestroy_v2(made->stream));
    DO(cuMemFree_v2(made->buffer));
    DO(cuMemFreeHost(made->pinned));
}

static void made_between(void) {
    all_kinds made[4];
    for (int round = 0; round < 4; ++round) {
        made[round] = make_all();
        for (int i = 0; i <= round; ++i) use_all(&made[i], (uint32_t)(10 * round + i));
        fault_again();
    }
    for (int i = 0; i < 4; ++i) use_all(&made[i], 7);
    for (int i = 0; i < 4; ++i) end_all(&made[i]);
    DO(cuCtxSynchronize());
}

// A handle of the driver at hand is that of the same object, or no object's.
static void found_again(void) {
    void *const affine = function("affine"), *other[3];
    set(1);
    for (int round = 0; round < 3; ++round) {
        fault_again();
        DO(cuStreamSynchronize(stream));
        if (function("affine") != affine) wrong("another handle of the same kernel");
        DO(cuModuleGetFunction(&other[round], module, round == 0 ? "count" : round == 1 ? "scale" : "arbitrary"));
        for (int i = 0; i < round; ++i)
            if (other[i] == other[round]) wrong("one handle of two kernels");
        DO(cuFuncSetAttribute(function("affine"), 8, 50000 + 1000 * round));
    }
    fault_again();
    launch(affine, stream);
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

// Memory by handles, of which the driver's numbers are used again.
static void handles_between(void) {
    const int properties[8] = {1, 1, 1, 0}, access[3] = {1, 0, 3};
    unsigned long long made[4];
    address at[4];
    for (int round = 0; round < 4; ++round) {
        DO(cuMemCreate(&made[round], 2 << 20, properties, 0));
        for (int i = 0; i < round; ++i)
            if (made[i] == made[round]) wrong("one handle of two memories");
        DO(cuMemAddressReserve(&at[round], 2 << 20, 0, 0, 0));
        DO(cuMemMap(at[round], 2 << 20, 0, made[round], 0));
        DO(cuMemSetAccess(at[round], 2 << 20, access, 1));
        DO(cuMemsetD32Async(at[round], 5 + (unsigned)round, 4, stream));
        DO(cuStreamSynchronize(stream));
        fault_again();
    }
    for (int i = 0; i < 4; ++i) {
        uint32_t got = 0;
        DO(cuMemcpyDtoH_v2(&got, at[i], 4));
        if (got != 5 + (uint32_t)i) wrong("content by a handle");
        DO(cuMemUnmap(at[i], 2 << 20));
        DO(cuMemMap(at[i], 2 << 20, 0, made[i], 0));
        DO(cuMemSetAccess(at[i], 2 << 20, access, 1));
        DO(cuMemcpyDtoH_v2(&got, at[i], 4));
        if (got != 5 + (uint32_t)i) wrong("content that was mapped again");
        DO(cuMemUnmap(at[i], 2 << 20));
        DO(cuMemRelease(made[i]));
    }
}

// Constants and variables that kernels wrote, in each driver.
static void variables_between(void) {
    void *const count = function("count");
    set(0);
    for (uint32_t round = 0; round < 4; ++round) {
        launch(count, stream);
        DO(cuStreamSynchronize(stream));
        expect(42 + round, "counter");
        fault_again();
    }
}

// What is set for good: limits of the context.
static void limit_between(void) {
    size_t stack = 0;
    for (size_t round = 0; round < 3; ++round) {
        DO(cuCtxSetLimit(0, 4096 << round));
        fault_again();
        DO(cuCtxGetLimit(&stack, 0));
        if (stack != (size_t)4096 << round) wrong("limit");
    }
}

static void without_end(void) {
    void *const affine = function("affine");
    for (int round = 0; round < 12; ++round) {
        set(1);
        fault_again();
        launch(affine, stream);
        DO(cuStreamSynchronize(stream));
        expect(4, "content");
    }
}
