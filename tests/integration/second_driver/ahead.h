// Cases for memory that a hot second driver has mapped before the fault.
#pragma once

static void refuse(const char *call) {
    const int fd = open(lane_file(SECOND, call), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (write(fd, "1", 1) != 1) wrong("the file");
    close(fd);
}

// Each of the second driver's calls that map memory fails from now on, once.
static void refuse_to_map(void) {
    static const char *const calls[] = {"fail-cuMemImportFromShareableHandle", "fail-cuMemMap", "fail-cuMemSetAccess", "fail-cuMemHostRegister_v2"};
    for (int i = 0; i < 4; ++i) refuse(calls[i]);
}

// How often a copy of the driver holds memory: nothing is free that one of them holds.
static int held(void) {
    char path[300], name[64] = "";
    int count = 0;
    DIR *const all = opendir("/proc/self/fd");
    for (const struct dirent *each; all != NULL && (each = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", each->d_name);
        const ssize_t length = readlink(path, name, sizeof name - 1);
        if (length > 0 && strncmp(name, "/memfd:stand-in-memory", 22) == 0) ++count;
    }
    closedir(all);
    return count;
}

static void settle_ahead(void) {
    for (int i = 0; i < 2; ++i) settle();
}

static void mapped_ahead(void) {
    address more[2];
    void *host;
    DO(cuMemHostAlloc(&host, 4096, 0));
    for (int i = 0; i < 2; ++i) DO(cuMemAlloc_v2(&more[i], 3 << 20));
    DO(cuMemsetD32Async(more[1], 7, 4, stream));
    DO(cuStreamSynchronize(stream));
    set(1);
    settle_ahead();
    refuse_to_map();
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(1, "content");
    DO(cuMemcpyDtoDAsync_v2(buffer, more[1], 16, stream));
    DO(cuStreamSynchronize(stream));
    expect(7, "content of another one");
}

static void mapped_ahead_in_flight(void) {
    address more;
    void *host;
    DO(cuMemHostAlloc(&host, 4096, 0));
    void *const affine = function("affine");
    DO(cuMemAlloc_v2(&more, 3 << 20));
    set(1);
    settle_ahead();
    launch(affine, stream);
    refuse_to_map();
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect(4, "content");
}

static void freed_is_free(void) {
    address more;
    set(1);
    settle_ahead();
    const int before = held();
    DO(cuMemAlloc_v2(&more, 3 << 20));
    set(1);
    settle_ahead();
    if (held() < before + 2) wrong("it is not mapped ahead");
    DO(cuMemFree_v2(more));
    set(1);
    settle_ahead();
    if (held() != before) wrong("it is kept");
}

// The look of the second driver's thread may come between: so it is tried again.
static void freed_is_free_when_asked(void) {
    address more;
    size_t before, later, all;
    set(1);
    settle_ahead();
    DO(cuMemGetInfo_v2(&before, &all));
    for (int i = 0; i < 5; ++i) {
        DO(cuMemAlloc_v2(&more, 3 << 20));
        settle_ahead();
        DO(cuMemFree_v2(more));
        DO(cuMemGetInfo_v2(&later, &all));
        if (later == before) return;
    }
    wrong("it is kept");
}

static void freed_is_free_when_refused(void) {
    const int properties[8] = {1, 1, 1, 0};
    unsigned long long handle;
    int fd = -1;
    DO(cuMemCreate(&handle, 2 << 20, properties, 0));
    const int before = held();
    settle_ahead();
    if (held() < before + 1) wrong("it is not mapped ahead");
    DO(cuMemExportToShareableHandle(&fd, handle, 1, 0));
    close(fd);
    fault_at_once();
    if (cuCtxSynchronize() != 719) wrong("went on");
    for (int i = 0; i < 20000 && !looker_has_ended(); ++i) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (held() > before) wrong("it is kept");
}

// Of 63 MiB.
static void freed_and_wanted(void) {
    address more;
    set(1);
    DO(cuMemAlloc_v2(&more, 40 << 20));
    settle_ahead();
    DO(cuMemFree_v2(more));
    DO(cuMemAlloc_v2(&more, 40 << 20));
    // It is not the driver's own, which could not be taken over.
    fault();
    DO(cuStreamSynchronize(stream));
    expect(1, "content");
}

static const int all_access[3] = {1, 0, 3}, no_access[3] = {1, 0, 0};

static void map_new(address at) {
    const int properties[8] = {1, 1, 1, 0};
    unsigned long long handle;
    DO(cuMemCreate(&handle, 2 << 20, properties, 0));
    DO(cuMemMap(at, 2 << 20, 0, handle, 0));
    DO(cuMemRelease(handle));
}

static void expect_at(address at, uint32_t value, const char *what) {
    DO(cuMemcpyDtoDAsync_v2(buffer, at, 16, stream));
    DO(cuStreamSynchronize(stream));
    expect(value, what);
}

static address map_and_use_again(bool settles) {
    address at;
    DO(cuMemAddressReserve(&at, 2 << 20, 0, 0, 0));
    map_new(at);
    DO(cuMemSetAccess(at, 2 << 20, all_access, 1));
    DO(cuMemsetD32Async(at, 5, 4, stream));
    DO(cuStreamSynchronize(stream));
    settle_ahead();
    DO(cuMemUnmap(at, 2 << 20));
    map_new(at);
    DO(cuMemSetAccess(at, 2 << 20, all_access, 1));
    DO(cuMemsetD32Async(at, 8, 4, stream));
    if (settles) DO(cuStreamSynchronize(stream));
    return at;
}

static void address_used_again(void) {
    const address at = map_and_use_again(true);
    settle_ahead();
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect_at(at, 8, "memory that was mapped last");
}

// The second driver has the first one's memory there.
static void address_used_again_in_flight(void) {
    const address at = map_and_use_again(false);
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    expect_at(at, 8, "memory that was mapped last");
}

static char host_pages[4 * 4096] __attribute__((aligned(4096)));

// More of it than before: while the second driver has the part, it takes no whole.
static void host_memory_used_again(void) {
    address there;
    set(1);
    DO(cuMemHostRegister_v2(host_pages + 4096, 4096, 0));
    settle_ahead();
    DO(cuMemHostUnregister(host_pages + 4096));
    DO(cuMemHostRegister_v2(host_pages, sizeof host_pages, 0));
    fault_at_once();
    DO(cuStreamSynchronize(stream));
    DO(cuMemHostGetDevicePointer_v2(&there, host_pages + sizeof host_pages - 1, 0));
    if (there != (address)host_pages + sizeof host_pages - 1) wrong("address");
    DO(cuMemHostUnregister(host_pages));
    DO(cuMemHostRegister_v2(host_pages + 4096, 2 * 4096, 0));
}

// What is unregistered is so there, too, before anything happens: a call that fails shows that it was made.
static void host_memory_is_left(void) {
    set(1);
    DO(cuMemHostRegister_v2(host_pages, sizeof host_pages, 0));
    settle_ahead();
    refuse("fail-cuMemHostUnregister");
    DO(cuMemHostUnregister(host_pages));
    settle_ahead();
    if (access(lane_file(SECOND, "fail-cuMemHostUnregister"), F_OK) == 0) wrong("it is kept");
    fault_at_once();
    DO(cuStreamSynchronize(stream));
}

static void launch_at(void *kernel, address at) {
    const address n = 4, a = 3, b = 1;
    void *parameters[] = {&at, (void *)&n, (void *)&a, (void *)&b};
    DO(cuLaunchKernel(kernel, 1, 1, 1, 4, 1, 1, 0, stream, parameters, NULL));
}

// A kernel cannot work there before it has access.
static void access_given_later(void) {
    address at;
    void *const affine = function("affine");
    DO(cuMemAddressReserve(&at, 2 << 20, 0, 0, 0));
    map_new(at);
    set(1);
    settle_ahead();
    DO(cuMemSetAccess(at, 2 << 20, all_access, 1));
    launch_at(affine, at);
    DO(cuStreamSynchronize(stream));
    fault();
    launch_at(affine, at);
    DO(cuStreamSynchronize(stream));
    expect_at(at, 4, "memory without access at first");
}

static void access_taken(void) {
    address at;
    void *const affine = function("affine");
    DO(cuMemAddressReserve(&at, 2 << 20, 0, 0, 0));
    map_new(at);
    DO(cuMemSetAccess(at, 2 << 20, all_access, 1));
    launch_at(affine, at);
    DO(cuStreamSynchronize(stream));
    settle_ahead();
    DO(cuMemSetAccess(at, 2 << 20, no_access, 1));
    fault();
    DO(cuStreamSynchronize(stream));
    launch_at(affine, at);
    // A fault of its own.
    if (cuStreamSynchronize(stream) == 0) wrong("it has access");
}

// While the second driver reserves the range of addresses, memory is placed in it.
static void placed_while_another_reserves(void) {
    address more;
    await_file(SECOND, "paused");
    DO(cuMemAlloc_v2(&more, 3 << 20));
    if (more < buffer || more - buffer >= (address)4 << 40) wrong("it is in another range");
    unlink(lane_file(SECOND, "pause-reserve"));
    set(1);
    fault();
    DO(cuStreamSynchronize(stream));
    expect(1, "content");
}
