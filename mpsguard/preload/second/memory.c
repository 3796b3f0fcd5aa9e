#include "second/memory.h"

#include <stdlib.h>
#include <string.h>

#include "second/ahead.h"
#include "second/host_memory.h"
#include "second/log.h"
#include "second/mappings.h"
#include "second/reasons.h"
#include "second/spare.h"

#define MOST_ASIDE 64
// Of the mappings that are read with both drivers.
#define MOST_READ 64

// A handle that the program holds, and what drivers call it.
typedef struct {
    word handle;
    word native, next;      // of the copy at hand, and of the one that is made ready (0: not there yet)
    long references, taken;  // by the program, and of the copy at hand: one that is carried is imported once
    bool fresh;             // never mapped: it has no content
} held_handle;

static list handles, plain;  // under the lock of mappings.h

mg_result memory_reserve(const driver_copy *copy, const word *a) {
    const uint64_t size = a[1], alignment = a[2];
    if (a[3] != 0 || a[4] != 0 || size == 0 || size % MAPPINGS_UNIT != 0 || (alignment & (alignment - 1)) != 0 || a[0] == 0) {
        const mg_result result = copies_call(copy, FUNCTION_cuMemAddressReserve, a, 5);
        if (result == MG_SUCCESS) reasons_hold(REASON_placed_reservations);
        return result;
    }
    const bool have = mappings_have_range(copy);
    pthread_mutex_lock(&mappings_lock);
    const uint64_t at = have ? mappings_take(size, alignment) : 0;
    pthread_mutex_unlock(&mappings_lock);
    if (at == 0) {
        const mg_result result = copies_call(copy, FUNCTION_cuMemAddressReserve, a, 5);
        if (result == MG_SUCCESS) reasons_hold(REASON_no_addresses);
        return result;
    }
    *(word *)POINTER(a[0]) = at;
    return MG_SUCCESS;
}

mg_result memory_unreserve(const driver_copy *copy, const word *a) {
    pthread_mutex_lock(&mappings_lock);
    const bool found = mappings_give_back(a[0], a[1]);
    pthread_mutex_unlock(&mappings_lock);
    return found ? MG_SUCCESS : copies_call(copy, FUNCTION_cuMemAddressFree, a, 2);
}

static held_handle *find_native(word native) {
    for (size_t i = 0; i < handles.count; ++i) {
        held_handle *const each = &ITEMS(held_handle, handles)[i];
        if (each->native == native) return each;
    }
    return NULL;
}

static held_handle *find_handle(word handle) {
    for (size_t i = 0; i < handles.count; ++i) {
        held_handle *const each = &ITEMS(held_handle, handles)[i];
        if (each->handle == handle) return each;
    }
    return NULL;
}

// In place of what the driver calls it, the program's handle. False if that is the number of one that the program has of another driver.
static bool hold_handle(word *handle, bool fresh) {
    const word native = *handle;
    pthread_mutex_lock(&mappings_lock);
    held_handle *known = find_native(native);
    const bool free = known != NULL || find_handle(native) == NULL;
    if (known != NULL) {
        ++known->references;
        ++known->taken;
        *handle = known->handle;
    } else if (free && (known = list_add(&handles, sizeof *known)) != NULL) {
        *known = (held_handle){native, native, 0, 1, 1, fresh};
    }
    pthread_mutex_unlock(&mappings_lock);
    return free;
}

// The same for one that cannot be had under another number.
static mg_result hold_or_release(const driver_copy *copy, word *handle) {
    if (hold_handle(handle, false)) return MG_SUCCESS;
    CALL(copy, cuMemRelease, *handle);
    return MG_OUT_OF_MEMORY;
}

// The handle of the copy at hand for one that the program has.
static word handle_of(word handle) {
    pthread_mutex_lock(&mappings_lock);
    const held_handle *const known = find_handle(handle);
    const word native = known != NULL ? known->native : handle;
    pthread_mutex_unlock(&mappings_lock);
    return native;
}

mg_result memory_create(const driver_copy *copy, const word *a) {
    // What cannot be exported cannot be taken over; so all of it can be.
    mg_allocation_properties wanted = *(const mg_allocation_properties *)POINTER(a[2]);
    if (wanted.location.type == MG_LOCATION_DEVICE) wanted.requested_handle_types |= MG_HANDLE_POSIX;
    else reasons_hold(REASON_pinned_memory);
    // Those with a number that is taken are kept until there is one with another.
    word aside[MOST_ASIDE];
    size_t count = 0;
    mg_result result = CALL(copy, cuMemCreate, a[0], a[1], WORD(&wanted), a[3]);
    while (result == MG_SUCCESS && !hold_handle(POINTER(a[0]), true)) {
        aside[count++] = *(const word *)POINTER(a[0]);
        result = count < MOST_ASIDE ? CALL(copy, cuMemCreate, a[0], a[1], WORD(&wanted), a[3]) : MG_OUT_OF_MEMORY;
    }
    while (count > 0) CALL(copy, cuMemRelease, aside[--count]);
    return result;
}

mg_result memory_release(const driver_copy *copy, const word *a) {
    pthread_mutex_lock(&mappings_lock);
    held_handle *known = find_handle(a[0]);
    const bool others = known != NULL && known->taken < known->references;
    if (others) --known->references;
    pthread_mutex_unlock(&mappings_lock);
    if (others) return MG_SUCCESS;
    const mg_result result = CALL(copy, cuMemRelease, handle_of(a[0]));
    if (result != MG_SUCCESS) return result;
    pthread_mutex_lock(&mappings_lock);
    known = find_handle(a[0]);
    if (known != NULL) --known->taken;
    const bool last = known != NULL && --known->references == 0;
    if (last) mappings_end_kept(mappings_key_of_handle(a[0]));
    if (last)
        list_drop(&handles, sizeof *known, (size_t)(known - ITEMS(held_handle, handles)));
    pthread_mutex_unlock(&mappings_lock);
    return result;
}

static word number_at(word address) {
    word number = 0;
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; number == 0 && i < mappings.count; ++i) {
        const mapping *const m = &ITEMS(mapping, mappings)[i];
        if (address - m->at < m->size) number = m->number;
    }
    pthread_mutex_unlock(&mappings_lock);
    return number;
}

mg_result memory_retain(const driver_copy *copy, const word *a) {
    mg_result result = copies_call(copy, FUNCTION_cuMemRetainAllocationHandle, a, 2);
    if (result != MG_SUCCESS || (result = hold_or_release(copy, POINTER(a[0]))) != MG_SUCCESS) return result;
    mappings_share_kept(number_at(a[1]), mappings_key_of_handle(*(const word *)POINTER(a[0])));
    return result;
}

mg_result memory_properties(const driver_copy *copy, const word *a) {
    return CALL(copy, cuMemGetAllocationPropertiesFromHandle, a[0], handle_of(a[1]));
}

mg_result memory_export(const driver_copy *copy, const word *a) {
    return CALL(copy, cuMemExportToShareableHandle, a[0], handle_of(a[1]), a[2], a[3]);
}

mg_result memory_import(const driver_copy *copy, const word *a) {
    const mg_result result = copies_call(copy, FUNCTION_cuMemImportFromShareableHandle, a, 3);
    if (result != MG_SUCCESS) return result;
    // Others may write to it at any time, and their work is not seen here.
    reasons_hold(REASON_shared_with_others);
    return hold_or_release(copy, POINTER(a[0]));
}

// The second driver's mappings, or those of a program without a log, are noted alone.
mg_result memory_map(const driver_copy *copy, const word *a) {
    const mg_result result = CALL(copy, cuMemMap, a[0], a[1], a[2], handle_of(a[3]), a[4]);
    if (result != MG_SUCCESS) return result;
    pthread_mutex_lock(&mappings_lock);
    const word number = mappings_number();
    held_handle *const known = find_handle(a[3]);
    const bool fresh = known != NULL && known->fresh;
    if (fresh) known->fresh = false;
    // What is written there may be what others have.
    for (size_t i = 0; !fresh && i < mappings.count; ++i) ITEMS(mapping, mappings)[i].untouched = false;
    mappings_share_kept(mappings_key_of_handle(a[3]), number);
    mapping *const made = list_add(&mappings, sizeof *made);
    if (made != NULL)
        *made = (mapping){.at = a[0], .size = a[1], .offset = a[2], .number = number, .since_epoch = true, .untouched = fresh};
    mappings_changed();
    pthread_mutex_unlock(&mappings_lock);
    if (!fresh) log_break(REASON_unlogged, "cuMemMap");
    log_add(LOG_MAP, FUNCTION_cuMemMap, NULL, &number, 1, 0);
    return result;
}

// What is mapped there, one after the other; its `number` is 0 if there is no more.
static mapping mapped_there(const word *a, word before) {
    mapping found = {0};
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = mappings.count; i-- > 0;) {
        const mapping *const m = &ITEMS(mapping, mappings)[i];
        if (m->at >= a[0] && m->at - a[0] < a[1] && m->number < before && m->number > found.number) found = *m;
    }
    pthread_mutex_unlock(&mappings_lock);
    return found;
}

// Work since the epoch may be repeated in it, so the memory stays until the next one. Before it is unmapped: then others may
// be given its addresses.
static bool retire(const word *a) {
    bool right = true;
    for (mapping m = mapped_there(a, UINT64_MAX); right && m.number != 0; m = mapped_there(a, m.number)) {
        right = CALL(copies_at_hand(), cuMemRetainAllocationHandle, WORD(&m.kept), m.at) == MG_SUCCESS;
        if (!right) break;
        log_add(LOG_UNMAP, FUNCTION_cuMemUnmap, NULL, &m.number, 1, 0);
        pthread_mutex_lock(&mappings_lock);
        mapping *const place = list_add(&retired, sizeof *place);
        if (place != NULL) *place = m;
        if (place != NULL) place->spare = 0;  // it is the mapping's until that is gone
        pthread_mutex_unlock(&mappings_lock);
    }
    return right;
}

// The driver did not unmap it.
static void take_back(const word *a) {
    for (mapping m = mapped_there(a, UINT64_MAX); m.number != 0; m = mapped_there(a, m.number)) {
        word kept = 0;
        pthread_mutex_lock(&mappings_lock);
        for (size_t i = retired.count; i-- > 0;) {
            if (ITEMS(mapping, retired)[i].number != m.number) continue;
            kept = ITEMS(mapping, retired)[i].kept;
            list_drop(&retired, sizeof m, i);
        }
        pthread_mutex_unlock(&mappings_lock);
        if (kept != 0) CALL(copies_at_hand(), cuMemRelease, kept);
    }
}

// It is not mapped any more. Its content of the epoch goes with it, or, without a log, is freed.
static void forget(word number) {
    mapping gone = {0};
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = mappings.count; i-- > 0;) {
        if (ITEMS(mapping, mappings)[i].number != number) continue;
        gone = ITEMS(mapping, mappings)[i];
        list_drop(&mappings, sizeof gone, i);
    }
    for (size_t i = 0; i < retired.count; ++i) {
        mapping *const m = &ITEMS(mapping, retired)[i];
        if (m->number != number) continue;
        m->spare = gone.spare;
        m->spare_number = gone.spare_number;
        gone.spare = 0;
    }
    mappings_changed();
    if (mappings_find_retired(number) == NULL) mappings_end_kept(number);
    pthread_mutex_unlock(&mappings_lock);
    spare_drop(&gone);
}

mg_result memory_unmap(const driver_copy *copy, const word *a) {
    const bool kept = log_is_on();
    if (kept && !retire(a)) log_break(REASON_unlogged, "cuMemUnmap");
    const mg_result result = copies_call(copy, FUNCTION_cuMemUnmap, a, 2);
    if (result != MG_SUCCESS) {
        if (kept) {
            log_break(REASON_unlogged, "cuMemUnmap");
            take_back(a);
        }
        return result;
    }
    for (mapping m = mapped_there(a, UINT64_MAX); m.number != 0; m = mapped_there(a, m.number)) forget(m.number);
    return result;
}

mg_result memory_set_access(const driver_copy *copy, const word *a) {
    const mg_result result = copies_call(copy, FUNCTION_cuMemSetAccess, a, 4);
    if (result != MG_SUCCESS) return result;
    const mg_access *const access = POINTER(a[2]);
    bool parts = false;
    if (a[3] != 1 || access->location.type != MG_LOCATION_DEVICE) reasons_hold(REASON_several_devices);
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; i < mappings.count; ++i) {
        mapping *const m = &ITEMS(mapping, mappings)[i];
        if (m->at >= a[0] + a[1] || a[0] >= m->at + m->size) continue;
        if (m->at < a[0] || m->at + m->size > a[0] + a[1]) parts = true;
        // It may have content that the epoch could not read.
        if (m->access.flags == 0 && !m->since_epoch && !m->was_untouched) log_break(REASON_unlogged, "cuMemSetAccess");
        m->access = *access;
        m->untouched = m->untouched && access->flags == 0;
    }
    mappings_changed();
    pthread_mutex_unlock(&mappings_lock);
    if (parts) reasons_hold_for(REASON_device_settings, "cuMemSetAccess of a part");
    return result;
}

static void hold_plain(word at) {
    pthread_mutex_lock(&mappings_lock);
    word *const made = list_add(&plain, sizeof *made);
    if (made != NULL) *made = at;
    pthread_mutex_unlock(&mappings_lock);
    reasons_hold(REASON_plain_memory);
}

mg_result memory_allocate_plain(const driver_copy *copy, const word *a) {
    const mg_result result = copies_call(copy, FUNCTION_cuMemAlloc_v2, a, 2);
    if (result == MG_SUCCESS) hold_plain(*(const word *)POINTER(a[0]));
    return result;
}

mg_result memory_allocate_pitch_plain(const driver_copy *copy, const word *a) {
    const mg_result result = copies_call(copy, FUNCTION_cuMemAllocPitch_v2, a, 5);
    if (result == MG_SUCCESS) hold_plain(*(const word *)POINTER(a[0]));
    return result;
}

mg_result memory_free_plain(const driver_copy *copy, const word *a) {
    const mg_result result = copies_call(copy, FUNCTION_cuMemFree_v2, a, 1);
    if (result != MG_SUCCESS) return result;
    bool found = false;
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = plain.count; !found && i-- > 0;) {
        found = ITEMS(word, plain)[i] == a[0];
        if (found) list_drop(&plain, sizeof(word), i);
    }
    pthread_mutex_unlock(&mappings_lock);
    if (found) reasons_let_go(REASON_plain_memory);
    return result;
}

void memory_leave(void) { mappings_leave(); }

bool memory_move(bool replay) {
    bool done = mappings_reserve_again();
    if (copies_at_work()->place == PLACE_LANE) ahead_drop(replay);
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; done && !replay && i < mappings.count; ++i) done = ahead_map(&ITEMS(mapping, mappings)[i]);
    done = done && (!replay || spare_restore());
    // The program's own use of them comes later.
    for (size_t i = 0; done && copies_at_work()->place == PLACE_LANE && i < handles.count; ++i) {
        held_handle *const each = &ITEMS(held_handle, handles)[i];
        done = each->next != 0 || mappings_carry(mappings_key_of_handle(each->handle), each->native, &each->next);
    }
    pthread_mutex_unlock(&mappings_lock);
    // Alone, kernels are to reach none: one that does faults, and what the program did to such memory since is not known.
    return done && (copies_at_work()->place == PLACE_ALONE || host_memory_move());
}

void memory_take_back(void) {
    ahead_give_up(true);
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; i < handles.count; ++i) {
        held_handle *const each = &ITEMS(held_handle, handles)[i];
        if (each->next != 0) CALL(copies_at_work(), cuMemRelease, each->next);
        each->next = 0;
    }
    pthread_mutex_unlock(&mappings_lock);
}

void memory_go_on(void) {
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; i < handles.count; ++i) {
        held_handle *const each = &ITEMS(held_handle, handles)[i];
        each->native = each->next;
        each->next = 0;
        each->taken = 1;
    }
    pthread_mutex_unlock(&mappings_lock);
    spare_end();
    host_memory_go_on();
    ahead_go_on();
}

struct memory_list {
    host_memory_list host;
    list mappings, retired, handles;
};

static list copy_of(const list *of, size_t size) {
    list made = {.items = malloc(of->count * size + 1), .count = of->count, .room = of->count};
    if (made.items == NULL) return (list){0};
    if (of->count > 0) memcpy(made.items, of->items, of->count * size);
    return made;
}

memory_list *memory_all(void) {
    memory_list *const all = calloc(1, sizeof *all);
    if (all == NULL) return NULL;
    all->host = host_memory_all();
    pthread_mutex_lock(&mappings_lock);
    all->mappings = copy_of(&mappings, sizeof(mapping));
    all->retired = copy_of(&retired, sizeof(mapping));
    all->handles = copy_of(&handles, sizeof(held_handle));
    pthread_mutex_unlock(&mappings_lock);
    return all;
}

static void let_go_of_spare(const driver_copy *left, const mapping *m) {
    if (m->spare == 0) return;
    CALL(left, cuMemUnmap, m->spare, m->size);
    pthread_mutex_lock(&mappings_lock);
    mappings_give_back(m->spare, m->size);
    pthread_mutex_unlock(&mappings_lock);
}

void memory_let_go(const driver_copy *left, memory_list *all) {
    if (all == NULL) return;
    for (size_t i = 0; i < all->retired.count; ++i) {
        const mapping *const m = &ITEMS(mapping, all->retired)[i];
        if (m->kept != 0) CALL(left, cuMemRelease, m->kept);
        let_go_of_spare(left, m);
    }
    for (size_t i = 0; i < all->mappings.count; ++i) {
        const mapping *const m = &ITEMS(mapping, all->mappings)[i];
        let_go_of_spare(left, m);
        CALL(left, cuMemUnmap, m->at, m->size);
    }
    for (size_t i = 0; i < all->handles.count; ++i) {
        const held_handle *const each = &ITEMS(held_handle, all->handles)[i];
        for (long k = 0; k < each->taken; ++k) CALL(left, cuMemRelease, each->native);
    }
    host_memory_let_go(left, &all->host);
    free(all->mappings.items);
    free(all->retired.items);
    free(all->handles.items);
    free(all);
}

static bool read_word(const driver_copy *copy, word at, word *out) {
    return CALL(copy, cuMemcpyDtoH_v2, WORD(out), at, sizeof *out) == MG_SUCCESS;
}

bool memory_is_the_same(void) {
    const driver_copy *const first = copies_at_hand();
    word at[2 * MOST_READ], seen[2 * MOST_READ], second, mine = 0;
    size_t count = 0;
    pthread_mutex_lock(&mappings_lock);
    const size_t step = mappings.count / MOST_READ + 1;
    for (size_t i = 0; i < mappings.count && count + 2 <= 2 * MOST_READ; i += step) {
        const mapping *const m = &ITEMS(mapping, mappings)[i];
        if (m->access.flags == 0) continue;
        at[count++] = m->at;
        at[count++] = m->at + m->size - sizeof *at;
    }
    pthread_mutex_unlock(&mappings_lock);
    bool same = CALL(copies_at_work(), cuCtxGetCurrent, WORD(&mine)) == MG_SUCCESS && CALL(first, cuCtxSetCurrent, first->context) == MG_SUCCESS;
    for (size_t i = 0; same && i < count; ++i) same = read_word(first, at[i], &seen[i]);
    same = CALL(copies_at_work(), cuCtxSetCurrent, mine) == MG_SUCCESS && same;
    for (size_t i = 0; same && i < count; ++i) same = read_word(copies_at_work(), at[i], &second) && second == seen[i];
    return same;
}
