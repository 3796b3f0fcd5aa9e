#define _GNU_SOURCE
#include "second/host_memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "second/host_reads.h"
#include "second/log.h"
#include "second/mappings.h"
#include "second/reasons.h"
#include "second/work.h"

#define OF_A_DEVICE 4
#define HOST_FLAGS 3  // portable, and with an address for the GPU

typedef struct {
    uint64_t at, size;
    word flags;
    word asked;  // flags of cuMemHostAlloc
    bool ours;
    word number; // none has that of another one
} host_range;

// Of a range with the second driver in the lane; under the lock of a takeover.
typedef struct {
    word of, at;
    bool unsure;  // a call failed: it is left for the takeover
} registration;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // never held over a driver call but in host_memory_move
static list hosts, registrations;
static word last_number;
static word newest, old;  // numbers: at this look, and at the one before
static _Atomic uint64_t lowest = UINT64_MAX, highest;  // of all that there has been
static _Atomic bool named;

bool host_memory_is_there(void) { return highest > 0; }

bool host_memory_is_pinned(word at, uint64_t size) {
    bool found = false;
    if (at >= highest || at + size <= lowest) return false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < hosts.count; ++i) {
        const host_range *const h = &ITEMS(host_range, hosts)[i];
        found = at < h->at + h->size && h->at < at + size;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void host_memory_look(const void *bytes, uint64_t size, word to) {
    const uint64_t from = lowest, span = highest > from ? highest - from : 0;
    const unsigned char *const all = bytes;
    if (span == 0 || named) return;
    for (uint64_t i = -to % sizeof(word); i + sizeof(word) <= size; i += sizeof(word)) {
        word value;
        memcpy(&value, all + i, sizeof value);
        if (value - from >= span || !host_memory_is_pinned(value, 1)) continue;
        named = true;
        return;
    }
}

bool host_memory_was_named(void) { return named; }

static void hold_host(host_range what) {
    pthread_mutex_lock(&lock);
    if (what.number == 0) what.number = ++last_number;
    host_range *const made = list_add(&hosts, sizeof *made);
    if (made != NULL) *made = what;
    if (what.at < lowest) lowest = what.at;
    if (what.at + what.size > highest) highest = what.at + what.size;
    pthread_mutex_unlock(&lock);
    mappings_changed();
}

// One that we have allocated, or one of the program's.
static bool take_host(uint64_t at, bool ours, host_range *out) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < hosts.count; ++i) {
        *out = ITEMS(host_range, hosts)[i];
        found = out->at == at && out->ours == ours;
        if (found) list_drop(&hosts, sizeof *out, i);
    }
    pthread_mutex_unlock(&lock);
    if (found) mappings_changed();
    return found;
}

// Pointers that kernels were given have to be good with the second driver, too.
static bool has_own_address(const driver_copy *copy, word at, bool mapped) {
    word seen = 0;
    if (CALL(copy, cuMemHostGetDevicePointer_v2, WORD(&seen), at, 0) != MG_SUCCESS) return !mapped;
    return seen == at;
}

static mg_result allocate_drivers_own(const driver_copy *copy, function_id id, const word *a) {
    const mg_result result = copies_call(copy, id, a, id == FUNCTION_cuMemHostAlloc ? 3 : 2);
    if (result == MG_SUCCESS) reasons_hold(REASON_pinned_memory);
    return result;
}

mg_result host_memory_allocate(const driver_copy *copy, function_id id, const word *a) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), size = (a[1] + page - 1) & ~(page - 1);
    if (a[0] == 0 || a[1] == 0 || size < a[1]) return allocate_drivers_own(copy, id, a);
    void *const at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return MG_OUT_OF_MEMORY;
    // A fork must not make these pages shared until they are written: the GPU works on those that were registered.
    madvise(at, size, MADV_DONTFORK);
    const mg_result result = CALL(copy, cuMemHostRegister_v2, WORD(at), size, HOST_FLAGS);
    if (result != MG_SUCCESS || !has_own_address(copy, WORD(at), true)) {
        if (result == MG_SUCCESS) CALL(copy, cuMemHostUnregister, WORD(at));
        munmap(at, size);
        return allocate_drivers_own(copy, id, a);
    }
    hold_host((host_range){WORD(at), size, HOST_FLAGS, id == FUNCTION_cuMemHostAlloc ? (unsigned)a[2] : 0, true, 0});
    *(word *)POINTER(a[0]) = WORD(at);
    return MG_SUCCESS;
}

mg_result host_memory_free(const driver_copy *copy, const word *a) {
    host_range found;
    // The driver waits before it frees; unregistering does not promise that.
    if (!take_host(a[0], true, &found)) return copies_call(copy, FUNCTION_cuMemFreeHost, a, 1);
    work_mark mark = work_mark_all();
    mg_result result = copies_call(copy, FUNCTION_cuCtxSynchronize, NULL, 0);
    if (result == MG_SUCCESS) {
        work_mark_is_over(&mark);
        host_reads_look();
    }
    work_mark_free(&mark);
    if (result == MG_SUCCESS && host_reads_drop(found.at, found.size)) log_break(REASON_unlogged, "cuMemFreeHost");
    if (result == MG_SUCCESS) result = CALL(copy, cuMemHostUnregister, a[0]);
    if (result != MG_SUCCESS) hold_host(found);
    else munmap(POINTER(found.at), found.size);
    return result;
}

mg_result host_memory_register(const driver_copy *copy, const word *a) {
    const mg_result result = copies_call(copy, FUNCTION_cuMemHostRegister_v2, a, 3);
    if (result != MG_SUCCESS) return result;
    hold_host((host_range){a[0], a[1], a[2], 0, false, 0});
    // To read another device's registers, for the log, may change them.
    if ((a[2] & OF_A_DEVICE) != 0 || !has_own_address(copy, a[0], false)) reasons_hold(REASON_pinned_memory);
    return result;
}

mg_result host_memory_unregister(const driver_copy *copy, const word *a) {
    const mg_result result = copies_call(copy, FUNCTION_cuMemHostUnregister, a, 1);
    host_range found;
    if (result == MG_SUCCESS && take_host(a[0], false, &found) && host_reads_drop(found.at, found.size))
        log_break(REASON_unlogged, "cuMemHostUnregister");
    return result;
}

// The driver knows registered memory; the program, memory that it allocated with flags of its own.
mg_result host_memory_flags(const driver_copy *copy, const word *a) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; a[0] != 0 && i < hosts.count; ++i) {
        const host_range *const h = &ITEMS(host_range, hosts)[i];
        if (!h->ours || a[1] < h->at || a[1] - h->at >= h->size) continue;
        *(unsigned *)POINTER(a[0]) = (unsigned)h->asked;
        pthread_mutex_unlock(&lock);
        return MG_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return copies_call(copy, FUNCTION_cuMemHostGetFlags, a, 2);
}

static registration *registered(word number) {
    for (size_t i = 0; i < registrations.count; ++i)
        if (ITEMS(registration, registrations)[i].of == number) return &ITEMS(registration, registrations)[i];
    return NULL;
}

// Under `lock`.
static bool is_had(word number) {
    for (size_t i = 0; i < hosts.count; ++i)
        if (ITEMS(host_range, hosts)[i].number == number) return true;
    return false;
}

static bool enter(const host_range *h) {
    registration *r = registered(h->number);
    if (r == NULL && (r = list_add(&registrations, sizeof *r)) == NULL) return false;
    *r = (registration){h->number, h->at, true};
    r->unsure = CALL(copies_at_work(), cuMemHostRegister_v2, h->at, h->size, h->flags) != MG_SUCCESS ||
                !has_own_address(copies_at_work(), h->at, h->ours);
    return !r->unsure;
}

bool host_memory_drop(void) {
    bool any = false;
    for (size_t i = registrations.count; i-- > 0;) {
        const registration r = ITEMS(registration, registrations)[i];
        pthread_mutex_lock(&lock);
        const bool had = is_had(r.of);
        pthread_mutex_unlock(&lock);
        if (had) continue;
        // One that failed may not be registered: that is an error, and no harm.
        CALL(copies_at_work(), cuMemHostUnregister, r.at);
        list_drop(&registrations, sizeof r, i);
        any = true;
    }
    return any;
}

void host_memory_age(void) {
    old = newest;
    pthread_mutex_lock(&lock);
    newest = last_number;
    pthread_mutex_unlock(&lock);
}

bool host_memory_step(bool *all) {
    host_range next;
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < hosts.count; ++i) {
        next = ITEMS(host_range, hosts)[i];
        // What is of a short life is not worth it.
        if (next.number > old) *all = false;
        else found = registered(next.number) == NULL;
    }
    pthread_mutex_unlock(&lock);
    // The program may have freed it since, and put something else there: that is registered until the next step.
    if (found) enter(&next);
    return found;
}

bool host_memory_move(void) {
    bool done = true;
    host_memory_drop();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; done && i < hosts.count; ++i) {
        const host_range *const h = &ITEMS(host_range, hosts)[i];
        const registration *const r = registered(h->number);
        if (r != NULL && !r->unsure) continue;
        if (r != NULL) CALL(copies_at_work(), cuMemHostUnregister, h->at);
        done = enter(h);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

void host_memory_leave(bool reachable) {
    for (size_t i = 0; reachable && i < registrations.count; ++i)
        CALL(copies_at_work(), cuMemHostUnregister, ITEMS(registration, registrations)[i].at);
    registrations.count = 0;
}

void host_memory_go_on(void) { registrations.count = 0; }

host_memory_list host_memory_all(void) {
    host_memory_list all = {0, NULL};
    pthread_mutex_lock(&lock);
    if (hosts.count > 0) all.at = malloc(hosts.count * sizeof *all.at);
    for (size_t i = 0; all.at != NULL && i < hosts.count; ++i) all.at[all.count++] = ITEMS(host_range, hosts)[i].at;
    pthread_mutex_unlock(&lock);
    return all;
}

void host_memory_let_go(const driver_copy *left, host_memory_list *all) {
    for (size_t i = 0; i < all->count; ++i) CALL(left, cuMemHostUnregister, all->at[i]);
    free(all->at);
    *all = (host_memory_list){0, NULL};
}
