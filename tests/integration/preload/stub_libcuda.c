// A stub of libcuda.so.1 over mmap and memfd: the part of the driver API that the preload and its tests use. It is no
// driver: "device memory" is memory of this process, and the UVM device is a memfd.
#define _GNU_SOURCE
#include "stub_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIT ((size_t)2 << 20)
#define MOST 65536

typedef struct {
    uint64_t at;
    size_t size;
    int value;  // of a mapping: its handle; of a plain allocation: its context
    int pool;   // of a plain allocation: the one it counts in, or 0
    unsigned devices;  // of a mapping: a bit for each that may reach it
} range;

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range reservations[MOST], mappings[MOST], plain[MOST];
static size_t reservation_count, mapping_count, plain_count;
static struct { int file; size_t size; int references; bool used; bool exportable; } handles[MOST];
static struct { _Atomic bool live, primary; _Atomic int device; } contexts[64];
_Atomic int capturing;
static _Atomic int primary_count[8];
_Atomic long violations;
static _Atomic size_t free_bytes = (size_t)100 << 30;
bool initialised;
static int uvm_wrong = -1, uvm = -1;
__thread int current_context;  // 0: none

static struct { const char *name; long calls, fail_at; int code; } functions[256];

static struct { pthread_mutex_t lock; pthread_cond_t changed; const char *function; int calls, came, gone; } held = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void wait_if_held(const char *name) {
    pthread_mutex_lock(&held.lock);
    if (held.calls > 0 && strcmp(held.function, name) == 0) {
        --held.calls;
        const int ticket = held.came++;
        pthread_cond_broadcast(&held.changed);
        while (held.gone <= ticket) pthread_cond_wait(&held.changed, &held.lock);
    }
    pthread_mutex_unlock(&held.lock);
}
EXPORT void stub_hold(const char *name, int calls) {
    pthread_mutex_lock(&held.lock);
    held.function = name;
    held.calls = calls;
    pthread_mutex_unlock(&held.lock);
}
EXPORT void stub_let_go(void) {
    pthread_mutex_lock(&held.lock);
    ++held.gone;
    pthread_cond_broadcast(&held.changed);
    pthread_mutex_unlock(&held.lock);
}
EXPORT void stub_wait_held(int calls) {
    pthread_mutex_lock(&held.lock);
    while (held.came - held.gone < calls) pthread_cond_wait(&held.changed, &held.lock);
    pthread_mutex_unlock(&held.lock);
}

int enter(const char *name) {
    int code = 0;
    wait_if_held(name);
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (functions[i].name != NULL && strcmp(functions[i].name, name) != 0) ++i;
    functions[i].name = name;
    ++functions[i].calls;
    if (functions[i].fail_at > 0 && --functions[i].fail_at == 0) code = functions[i].code;
    pthread_mutex_unlock(&lock);
    return code;
}
EXPORT void stub_fail(const char *name, long nth, int code) {
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (functions[i].name != NULL && strcmp(functions[i].name, name) != 0) ++i;
    if (functions[i].name == NULL) functions[i].name = strdup(name);
    functions[i].fail_at = nth;
    functions[i].code = code;
    pthread_mutex_unlock(&lock);
}

EXPORT long stub_calls(const char *name) {
    for (size_t i = 0; functions[i].name != NULL; ++i)
        if (strcmp(functions[i].name, name) == 0) return functions[i].calls;
    return 0;
}

// Bytes of managed ranges between two addresses.
static long armed(unsigned long from, unsigned long to) {
    char line[512];
    long sum = 0;
    FILE *const maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long low, high;
        if (strstr(line, "memfd:nvidia-uvm") != NULL && sscanf(line, "%lx-%lx", &low, &high) == 2 &&
            low < to && high > from)
            sum += (long)(high - low);
    }
    if (maps != NULL) fclose(maps);
    return sum;
}

EXPORT long stub_count(const char *kind) {
    long live = 0;
    if (strcmp(kind, "reservations") == 0) return (long)reservation_count;
    if (strcmp(kind, "mappings") == 0) return (long)mapping_count;
    if (strcmp(kind, "plain") == 0) return (long)plain_count;
    if (strcmp(kind, "armed") == 0) return armed(0, ~0ul);
    if (strcmp(kind, "handles") == 0)
        for (size_t i = 1; i < MOST; ++i) live += handles[i].used;
    if (strcmp(kind, "contexts") == 0)
        for (size_t i = 1; i < 64; ++i) live += contexts[i].live;
    return live;
}

EXPORT void stub_launch(void) {
    pthread_mutex_lock(&lock);
    const int stream = streams_legacy();
    for (size_t i = 0; i < mapping_count; ++i) streams_enqueue(stream, mappings[i].at);
    pthread_mutex_unlock(&lock);
}
EXPORT long stub_violations(void) { return violations; }
EXPORT void stub_set_free(size_t bytes) { free_bytes = bytes; }

// The list entry that starts at, or holds, an address.
static range *find(range *list, size_t count, uint64_t at, bool inside) {
    for (size_t i = 0; i < count; ++i)
        if (list[i].at == at || (inside && at >= list[i].at && at - list[i].at < list[i].size)) return &list[i];
    return NULL;
}

static void drop(range *list, size_t *count, range *entry) { *entry = list[--*count]; }

static uint64_t aligned_addresses(size_t size) {
    char *const raw = mmap(NULL, size + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return 0;
    const uint64_t start = ((uint64_t)(uintptr_t)raw + UNIT - 1) & ~(UNIT - 1);
    const uint64_t end = (uint64_t)(uintptr_t)raw + size + UNIT;
    if (start > (uint64_t)(uintptr_t)raw) munmap(raw, start - (uint64_t)(uintptr_t)raw);
    if (end > start + size) munmap((void *)(uintptr_t)(start + size), end - start - size);
    return start;
}

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    if (!initialised) {
        // As CUDA has it: one descriptor that takes no mappings, one that is the VA space.
        uvm = memfd_create("nvidia-uvm", MFD_CLOEXEC);
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", uvm);
        uvm_wrong = open(path, O_RDONLY | O_CLOEXEC);
        const int low = dup(uvm_wrong);
        (void)low;
        if (uvm < 0 || uvm_wrong < 0 || ftruncate(uvm, (off_t)1 << 48) != 0) abort();
        initialised = getenv("STUB_NO_UVM") == NULL || (close(uvm), close(uvm_wrong), true);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
EXPORT int cuDeviceGetCount(int *count) {
    ENTER;
    const char *const text = getenv("STUB_DEVICES");
    *count = text != NULL ? atoi(text) : 1;
    return 0;
}
EXPORT int cuDeviceCanAccessPeer(int *can, int from, int to) {
    ENTER;
    *can = from != to && getenv("STUB_NO_PEERS") == NULL;
    return 0;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER;
    (void)device;
    const char *const lacking = getenv("STUB_LACKS");
    *value = attribute == 11 ? INT32_MAX : 1;
    if (lacking != NULL && atoi(lacking) == attribute) *value = 0;
    return 0;
}

static int new_context(int device, bool primary) {
    for (int i = 1; i < 64; ++i) {
        if (contexts[i].live) continue;
        contexts[i].live = true;
        contexts[i].primary = primary;
        contexts[i].device = device;
        return i;
    }
    abort();
}

static int primary_of(int device) {
    for (int i = 1; i < 64; ++i)
        if (contexts[i].live && contexts[i].primary && contexts[i].device == device) return i;
    return 0;
}

static void end_context(int context) {
    contexts[context].live = false;
    streams_end(context);
    for (size_t i = plain_count; i-- > 0;) {
        if (plain[i].value != context) continue;
        munmap((void *)(uintptr_t)plain[i].at, plain[i].size);
        pool_subtract(plain[i].pool, plain[i].size);
        drop(plain, &plain_count, &plain[i]);
    }
}

static void *handle_of(int context) { return (void *)(intptr_t)context; }
bool is_live_context(int context) { return context > 0 && context < 64 && contexts[context].live; }
static bool is_live(const void *context) { return is_live_context((int)(intptr_t)context); }

EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    ENTER;
    (void)flags;
    current_context = new_context(device, false);
    *context = handle_of(current_context);
    return 0;
}
EXPORT int cuCtxCreate_v4(void **context, void *settings, unsigned flags, int device) {
    return (void)settings, cuCtxCreate_v2(context, flags, device);
}
EXPORT int cuCtxDestroy_v2(void *context) {
    ENTER;
    if (!is_live(context)) return 201;
    end_context((int)(intptr_t)context);
    if (current_context == (int)(intptr_t)context) current_context = 0;
    return 0;
}
EXPORT int cuCtxDestroy(void *context) { return cuCtxDestroy_v2(context); }
EXPORT int cuCtxGetCurrent(void **context) {
    ENTER;
    *context = contexts[current_context].live ? handle_of(current_context) : NULL;
    return 0;
}
EXPORT int cuCtxSetCurrent(void *context) { return current_context = (int)(intptr_t)context, 0; }
static __thread int stacked[16], depth;
EXPORT int cuCtxPushCurrent_v2(void *context) {
    ENTER;
    if (!is_live(context)) return 201;
    stacked[depth++] = current_context;
    current_context = (int)(intptr_t)context;
    return 0;
}
EXPORT int cuCtxPopCurrent_v2(void **context) {
    ENTER;
    if (depth == 0) return 201;
    *context = handle_of(current_context);
    current_context = stacked[--depth];
    return 0;
}
EXPORT int cuCtxGetDevice(int *device) {
    ENTER;
    if (!contexts[current_context].live) return 201;
    *device = contexts[current_context].device;
    return 0;
}
EXPORT int cuCtxSynchronize(void) {
    ENTER;
    if (!contexts[current_context].live) return 201;
    if (capturing > 0) {
        ++violations;
        return 900;
    }
    pthread_mutex_lock(&lock);
    streams_finish(current_context);
    pthread_mutex_unlock(&lock);
    wait_if_held("cuCtxSynchronize, over");
    return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER;
    int found = primary_of(device);
    if (found == 0) found = new_context(device, true);
    ++primary_count[device];
    *context = handle_of(found);
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER;
    if (primary_count[device] == 0) return 201;
    if (--primary_count[device] == 0) end_context(primary_of(device));
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }
EXPORT int cuDevicePrimaryCtxReset_v2(int device) {
    ENTER;
    if (primary_of(device) != 0) end_context(primary_of(device));
    primary_count[device] = 0;
    return 0;
}
EXPORT int cuDevicePrimaryCtxReset(int device) { return cuDevicePrimaryCtxReset_v2(device); }
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    ENTER;
    *flags = 0;
    *active = primary_of(device) != 0;
    return 0;
}
EXPORT int cuGreenCtxCreate(void **context, void *description, int device, unsigned flags) {
    ENTER;
    (void)description, (void)flags;
    *context = handle_of(new_context(device, false));
    return 0;
}

int allocate(uint64_t *address, size_t size, int pool) {
    if (!contexts[current_context].live) return 201;
    if (size == 0 || address == NULL) return 1;
    const uint64_t unit = size > UNIT / 2 ? UNIT : 512, rounded = (size + unit - 1) & ~(unit - 1);
    if (rounded > free_bytes) return 2;
    void *const at = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 2;
    pthread_mutex_lock(&lock);
    plain[plain_count++] = (range){(uint64_t)(uintptr_t)at, rounded, current_context, pool, 0};
    pool_add(pool, rounded);
    pthread_mutex_unlock(&lock);
    *address = (uint64_t)(uintptr_t)at;
    return 0;
}
int release(uint64_t address, bool wait) {
    pthread_mutex_lock(&lock);
    range *const found = find(plain, plain_count, address, false);
    const range gone = found != NULL ? *found : (range){0};
    if (found != NULL) drop(plain, &plain_count, found);
    if (found != NULL) pool_subtract(gone.pool, gone.size);
    if (found != NULL && wait && capturing == 0) streams_finish(gone.value);
    pthread_mutex_unlock(&lock);
    if (found == NULL) return 1;
    munmap((void *)(uintptr_t)gone.at, gone.size);
    return 0;
}
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    ENTER;
    return streams_refuse() != 0 ? 900 : allocate(address, size, 0);
}
// The 32-bit one of before CUDA 3.2, told apart by its answer.
EXPORT int cuMemAlloc(unsigned *address, unsigned size) { return (void)address, (void)size, 801; }
EXPORT int cuMemFree(unsigned address) { return (void)address, 801; }
EXPORT int cuMemFree_v2(uint64_t address) {
    ENTER;
    return address == 0 ? 0 : release(address, true);
}
EXPORT int cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    ENTER;
    if (element != 4 && element != 8 && element != 16) return 1;
    *pitch = (width + 511) & ~(size_t)511;
    return streams_refuse() != 0 ? 900 : allocate(address, *pitch * height, 0);
}
EXPORT int cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER;
    *available = free_bytes;
    *total = (size_t)140 << 30;
    return 0;
}
EXPORT int cuMemGetAddressRange_v2(uint64_t *start, size_t *size, uint64_t address) {
    ENTER;
    pthread_mutex_lock(&lock);
    const range *found = find(plain, plain_count, address, true);
    if (found == NULL) found = find(mappings, mapping_count, address, true);
    if (found != NULL && start != NULL) *start = found->at;
    if (found != NULL && size != NULL) *size = found->size;
    pthread_mutex_unlock(&lock);
    return found != NULL ? 0 : 500;
}
EXPORT int cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
    ENTER;
    pthread_mutex_lock(&lock);
    const range *const own = find(plain, plain_count, address, true);
    const range *const mapped = find(mappings, mapping_count, address, true);
    pthread_mutex_unlock(&lock);
    const range *const found = own != NULL ? own : mapped;
    if (found == NULL) return 1;
    switch (attribute) {
        case 1: *(void **)data = own != NULL ? handle_of(own->value) : NULL; break;
        case 2: *(unsigned *)data = 2; break;
        case 10: *(bool *)data = own != NULL; break;
        case 11: *(uint64_t *)data = found->at; break;
        case 12: *(size_t *)data = found->size; break;
        case 17: *(void **)data = own != NULL ? pool_handle(own->pool) : NULL; break;
        default: return 1;
    }
    return 0;
}
EXPORT int cuPointerGetAttributes(unsigned count, int *attributes, void **data, uint64_t address) {
    ENTER;
    for (unsigned i = 0; i < count; ++i) cuPointerGetAttribute(data[i], attributes[i], address);
    return 0;
}
EXPORT int cuIpcGetMemHandle(void *handle, uint64_t address) {
    ENTER;
    pthread_mutex_lock(&lock);
    const bool known = find(plain, plain_count, address, false) != NULL;
    pthread_mutex_unlock(&lock);
    if (known) memset(handle, 0x77, 64);
    return known ? 0 : 1;
}
typedef struct { char bytes[64]; } ipc_handle;
// The stub's own handles say nothing; one that it did not make is refused, as by a driver.
EXPORT int cuIpcOpenMemHandle_v2(uint64_t *address, ipc_handle handle, unsigned flags) {
    ENTER;
    (void)flags;
    if (handle.bytes[0] != 0x77 || handle.bytes[63] != 0x77) return 1;
    return allocate(address, UNIT, 0);
}
EXPORT int cuIpcOpenMemHandle(uint64_t *address, ipc_handle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}
EXPORT int cuIpcCloseMemHandle(uint64_t address) {
    ENTER;
    return release(address, true);
}

EXPORT int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t hint, unsigned long long flags) {
    ENTER;
    (void)alignment, (void)hint, (void)flags;
    if (size == 0 || size % UNIT != 0) return 1;
    const uint64_t start = aligned_addresses(size);
    if (start == 0) return 2;
    // Like a driver that keeps its reservations to itself: nothing is mapped there.
    if (getenv("STUB_BARE_RESERVATIONS") != NULL) munmap((void *)(uintptr_t)start, size);
    pthread_mutex_lock(&lock);
    reservations[reservation_count++] = (range){.at = start, .size = size};
    pthread_mutex_unlock(&lock);
    *address = start;
    return 0;
}
EXPORT int cuMemAddressFree(uint64_t address, size_t size) {
    ENTER;
    int result = 0;
    pthread_mutex_lock(&lock);
    range *const found = find(reservations, reservation_count, address, false);
    for (size_t i = 0; i < mapping_count; ++i)
        if (mappings[i].at >= address && mappings[i].at < address + size) result = 1;
    if (found == NULL || found->size != size) result = 1;
    if (result == 0) drop(reservations, &reservation_count, found);
    violations += armed(address, address + size) != 0;  // the driver might give the addresses out with our range on them
    pthread_mutex_unlock(&lock);
    if (result == 0) munmap((void *)(uintptr_t)address, size);
    return result;
}
EXPORT int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option) {
    ENTER;
    (void)properties, (void)option;
    *granularity = UNIT;
    return 0;
}
EXPORT int cuMemCreate(unsigned long long *handle, size_t size, const void *properties, unsigned long long flags) {
    ENTER;
    (void)flags;
    if (size == 0 || size % UNIT != 0) return 1;
    if (size > free_bytes) return 2;
    const int file = memfd_create("device-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) return 2;
    pthread_mutex_lock(&lock);
    size_t i = 1;
    while (handles[i].used) ++i;
    handles[i].file = file;
    handles[i].size = size;
    handles[i].references = 1;
    handles[i].used = true;
    // The second number of the properties says as what it may be exported.
    handles[i].exportable = properties != NULL && ((const int *)properties)[1] == 1;
    pthread_mutex_unlock(&lock);
    *handle = i;
    return 0;
}
EXPORT int cuMemExportToShareableHandle(void *out, unsigned long long handle, int type, unsigned long long flags) {
    ENTER;
    (void)flags;
    if (type != 1 || !handles[handle].used || !handles[handle].exportable) return 1;
    const int copy = dup(handles[handle].file);
    *(int *)out = copy;
    return copy < 0 ? 2 : 0;
}
EXPORT int cuMemImportFromShareableHandle(unsigned long long *handle, void *fd, int type) {
    ENTER;
    struct stat found;
    const int file = type == 1 ? fcntl((int)(intptr_t)fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (file < 0 || fstat(file, &found) != 0) return 1;
    pthread_mutex_lock(&lock);
    size_t i = 1;
    while (handles[i].used) ++i;
    handles[i].file = file;
    handles[i].size = (size_t)found.st_size;
    handles[i].references = 1;
    handles[i].used = true;
    pthread_mutex_unlock(&lock);
    *handle = i;
    return 0;
}
static void let_go(size_t i) {
    for (size_t m = 0; m < mapping_count; ++m)
        if (mappings[m].value == (int)i) return;
    if (handles[i].references > 0 || !handles[i].used) return;
    close(handles[i].file);
    handles[i].used = false;
}
EXPORT int cuMemRelease(unsigned long long handle) {
    ENTER;
    pthread_mutex_lock(&lock);
    const bool known = handle > 0 && handle < MOST && handles[handle].used && handles[handle].references > 0;
    if (known) {
        --handles[handle].references;
        let_go(handle);
    }
    pthread_mutex_unlock(&lock);
    return known ? 0 : 1;
}
EXPORT int cuMemMap(uint64_t address, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
    ENTER;
    (void)flags;
    pthread_mutex_lock(&lock);
    const range *const inside = find(reservations, reservation_count, address, true);
    int result = inside != NULL && address + size <= inside->at + inside->size && offset == 0 && size == handles[handle].size ? 0 : 1;
    if (result == 0 && mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handles[handle].file, 0) == MAP_FAILED)
        result = 2;
    if (result == 0) mappings[mapping_count++] = (range){.at = address, .size = size, .value = (int)handle};
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int cuMemUnmap(uint64_t address, size_t size) {
    ENTER;
    pthread_mutex_lock(&lock);
    range *const found = find(mappings, mapping_count, address, false);
    const bool known = found != NULL && found->size == size;
    if (known) {
        violations += streams_use(address, address + size);  // a real GPU would fault: unmapping waits for nothing
        const int handle = found->value;
        mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        drop(mappings, &mapping_count, found);
        let_go((size_t)handle);
    }
    pthread_mutex_unlock(&lock);
    return known ? 0 : 1;
}
EXPORT int cuMemSetAccess(uint64_t address, size_t size, const void *access, size_t count) {
    ENTER;
    const int *const location = access;  // type, number, flags
    (void)count;
    pthread_mutex_lock(&lock);
    range *const found = find(mappings, mapping_count, address, false);
    if (found != NULL) found->devices |= 1u << location[1];
    pthread_mutex_unlock(&lock);
    return mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE) == 0 ? 0 : 1;
}
EXPORT int stub_reaches(int device, uint64_t address) {
    pthread_mutex_lock(&lock);
    const range *const found = find(mappings, mapping_count, address, true);
    const int reaches = found != NULL && (found->devices >> device & 1) != 0;
    pthread_mutex_unlock(&lock);
    return reaches;
}
// The handle of the memory that is mapped at an address; `held`: the caller will release it.
static int retain(unsigned long long *handle, void *address, bool held) {
    pthread_mutex_lock(&lock);
    const range *const found = find(mappings, mapping_count, (uint64_t)(uintptr_t)address, true);
    if (found != NULL) *handle = (unsigned long long)found->value;
    if (found != NULL && held) ++handles[found->value].references;
    pthread_mutex_unlock(&lock);
    return found != NULL ? 0 : 1;
}
EXPORT int cuMemRetainAllocationHandle(unsigned long long *handle, void *address) {
    ENTER;
    return retain(handle, address, true);
}

#define DECLARE_STREAM_FUNCTION(name) extern int name();
STREAM_FUNCTIONS(DECLARE_STREAM_FUNCTION)

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);
EXPORT int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);

// What a driver of the year 2030 might return for a newer version, with another meaning: must be passed on untouched.
static int newer_alloc(uint64_t *address, size_t size, void *more) { return (void)address, (void)size, (void)more, 802; }

#define ENTRY(symbol, since, name) {symbol, since, (void *)name, NULL}
#define ENTRY_PTSZ(symbol, since, name) {symbol, since, (void *)name, (void *)name##_ptsz}

// By base name and the version from which each is current, newest first; with a variant for the per-thread default
// stream or NULL.
static const struct { const char *symbol; int since; void *legacy, *per_thread; } entry_points[] = {
    ENTRY("cuInit", 2000, cuInit),
    ENTRY("cuDriverGetVersion", 2020, cuDriverGetVersion),
    ENTRY("cuDeviceGet", 2000, cuDeviceGet),
    ENTRY("cuDeviceGetCount", 2000, cuDeviceGetCount),
    ENTRY("cuDeviceGetAttribute", 2000, cuDeviceGetAttribute),
    ENTRY("cuCtxCreate", 3020, cuCtxCreate_v2),
    ENTRY("cuCtxSetCurrent", 4000, cuCtxSetCurrent),
    ENTRY("cuCtxGetCurrent", 4000, cuCtxGetCurrent),
    ENTRY("cuCtxSynchronize", 2000, cuCtxSynchronize),
    ENTRY("cuCtxDestroy", 4000, cuCtxDestroy_v2),
    ENTRY("cuCtxDestroy", 2000, cuCtxDestroy),
    ENTRY("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain),
    ENTRY("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2),
    ENTRY("cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease),
    ENTRY("cuDevicePrimaryCtxReset", 11000, cuDevicePrimaryCtxReset_v2),
    ENTRY("cuDevicePrimaryCtxReset", 7000, cuDevicePrimaryCtxReset),
    ENTRY("cuGreenCtxCreate", 12040, cuGreenCtxCreate),
    ENTRY("cuMemAlloc", 20000, newer_alloc),
    ENTRY("cuMemAlloc", 3020, cuMemAlloc_v2),
    ENTRY("cuMemAlloc", 2000, cuMemAlloc),
    ENTRY("cuMemFree", 3020, cuMemFree_v2),
    ENTRY("cuMemFree", 2000, cuMemFree),
    ENTRY("cuMemAllocPitch", 3020, cuMemAllocPitch_v2),
    ENTRY_PTSZ("cuMemAllocAsync", 11020, cuMemAllocAsync),
    ENTRY_PTSZ("cuMemAllocFromPoolAsync", 11020, cuMemAllocFromPoolAsync),
    ENTRY_PTSZ("cuMemFreeAsync", 11020, cuMemFreeAsync),
    ENTRY("cuMemGetInfo", 3020, cuMemGetInfo_v2),
    ENTRY("cuMemGetAddressRange", 3020, cuMemGetAddressRange_v2),
    ENTRY("cuPointerGetAttribute", 4000, cuPointerGetAttribute),
    ENTRY("cuPointerGetAttributes", 7000, cuPointerGetAttributes),
    ENTRY("cuIpcGetMemHandle", 4010, cuIpcGetMemHandle),
    ENTRY("cuIpcOpenMemHandle", 11000, cuIpcOpenMemHandle_v2),
    ENTRY("cuIpcOpenMemHandle", 4010, cuIpcOpenMemHandle),
    ENTRY("cuIpcCloseMemHandle", 4010, cuIpcCloseMemHandle),
    ENTRY("cuMemRetainAllocationHandle", 11000, cuMemRetainAllocationHandle),
    ENTRY_PTSZ("cuStreamBeginCapture", 10010, cuStreamBeginCapture_v2),
    ENTRY_PTSZ("cuStreamBeginCapture", 10000, cuStreamBeginCapture),
    ENTRY_PTSZ("cuStreamEndCapture", 10000, cuStreamEndCapture),
    ENTRY("cuStreamDestroy", 4000, cuStreamDestroy_v2),
    ENTRY("cuStreamCreate", 2000, cuStreamCreate),
    ENTRY_PTSZ("cuStreamSynchronize", 2000, cuStreamSynchronize),
    ENTRY("cuEventCreate", 2000, cuEventCreate),
    ENTRY("cuEventRecord", 2000, cuEventRecord),
    ENTRY("cuEventSynchronize", 2000, cuEventSynchronize),
    ENTRY("cuMemCreate", 10020, cuMemCreate),
    ENTRY("cuMemPoolCreate", 11020, cuMemPoolCreate),
    ENTRY("cuMemPoolDestroy", 11020, cuMemPoolDestroy),
    ENTRY("cuMemPoolSetAccess", 11020, cuMemPoolSetAccess),
    ENTRY("cuMemPoolSetAttribute", 11020, cuMemPoolSetAttribute),
    ENTRY("cuMemPoolGetAttribute", 11020, cuMemPoolGetAttribute),
    ENTRY("cuMemPoolTrimTo", 11020, cuMemPoolTrimTo),
    ENTRY("cuDeviceGetDefaultMemPool", 11020, cuDeviceGetDefaultMemPool),
    ENTRY("cuDeviceSetMemPool", 11020, cuDeviceSetMemPool),
    ENTRY("cuGetProcAddress", 12000, cuGetProcAddress_v2),
    ENTRY("cuGetProcAddress", 11030, cuGetProcAddress),
    {NULL, 0, NULL, NULL},
};

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    const int refused = enter(__func__);
    if (refused != 0) return refused;
    *function = NULL;
    if (status != NULL) *status = 1;
    for (size_t i = 0; entry_points[i].symbol != NULL; ++i) {
        if (strcmp(entry_points[i].symbol, symbol) != 0 || version < entry_points[i].since) continue;
        *function = (flags & 2) && entry_points[i].per_thread ? entry_points[i].per_thread : entry_points[i].legacy;
        if (status != NULL) *status = 0;
        return 0;
    }
    return status != NULL ? 0 : 500;
}
EXPORT int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

// Under a name that is not hooked.
EXPORT int stub_retain(unsigned long long *handle, void *address) { return retain(handle, address, false); }

EXPORT uintptr_t stub_address(const char *exported) {
    static const struct { const char *name; void *function; } own[] = {
        {"cuMemAlloc_v2", (void *)cuMemAlloc_v2},
        {"cuMemFree_v2", (void *)cuMemFree_v2},
        {"cuMemAllocPitch_v2", (void *)cuMemAllocPitch_v2},
        {"cuMemFreeAsync", (void *)cuMemFreeAsync},
        {"cuPointerGetAttributes", (void *)cuPointerGetAttributes},
        {"cuIpcGetMemHandle", (void *)cuIpcGetMemHandle},
        {"cuStreamEndCapture", (void *)cuStreamEndCapture},
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; ++i)
        if (strcmp(own[i].name, exported) == 0) return (uintptr_t)own[i].function;
    return 0;
}
