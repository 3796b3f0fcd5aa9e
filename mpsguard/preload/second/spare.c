#include "second/spare.h"

#include <stdatomic.h>

#include "second/ahead.h"
#include "second/reasons.h"

// Left to the program, its driver and its neighbours.
#define MARGIN ((uint64_t)512 << 20)

static _Atomic uint64_t held;
// Of a copy.
static struct {
    const driver_copy *of;
    word stream;
} copying;

bool spare_keeps_freed(void) {
    pthread_mutex_lock(&mappings_lock);
    const bool any = retired.count > 0;
    pthread_mutex_unlock(&mappings_lock);
    return any;
}

bool spare_is_held(void) { return held > 0 || spare_keeps_freed(); }

static void give_back(uint64_t at, uint64_t size) {
    CALL(copies_at_hand(), cuMemUnmap, at, size);
    pthread_mutex_lock(&mappings_lock);
    mappings_give_back(at, size);
    pthread_mutex_unlock(&mappings_lock);
    held -= size;
}

void spare_drop(const mapping *m) {
    if (m->spare != 0) give_back(m->spare, m->size);
}

static bool make(mapping *m, int device) {
    const mg_allocation_properties wanted = {
        .type = MG_MEMORY_PINNED, .requested_handle_types = MG_HANDLE_POSIX, .location = {MG_LOCATION_DEVICE, device}};
    const mg_access access = {{MG_LOCATION_DEVICE, device}, MG_ACCESS_READ_WRITE};
    word handle = 0;
    if (CALL(copies_at_hand(), cuMemCreate, WORD(&handle), m->size, WORD(&wanted), 0) != MG_SUCCESS) return false;
    pthread_mutex_lock(&mappings_lock);
    const uint64_t at = mappings_take(m->size, MAPPINGS_UNIT);
    pthread_mutex_unlock(&mappings_lock);
    const bool mapped = at != 0 && CALL(copies_at_hand(), cuMemMap, at, m->size, 0, handle, 0) == MG_SUCCESS;
    CALL(copies_at_hand(), cuMemRelease, handle);
    if (mapped) held += m->size;
    if (mapped && CALL(copies_at_hand(), cuMemSetAccess, at, m->size, WORD(&access), 1) == MG_SUCCESS) {
        pthread_mutex_lock(&mappings_lock);
        m->spare = at;
        m->spare_number = mappings_number();
        mappings_changed();
        pthread_mutex_unlock(&mappings_lock);
        return true;
    }
    if (mapped) {
        give_back(at, m->size);
    } else if (at != 0) {
        pthread_mutex_lock(&mappings_lock);
        mappings_give_back(at, m->size);
        pthread_mutex_unlock(&mappings_lock);
    }
    return false;
}

// What was unmapped, as far as it was kept.
static bool free_retired(void) {
    for (bool any = false;; any = true) {
        mapping last;
        pthread_mutex_lock(&mappings_lock);
        const bool found = retired.count > 0;
        if (found) last = ITEMS(mapping, retired)[--retired.count];
        mappings_changed();
        pthread_mutex_unlock(&mappings_lock);
        if (!found) return any;
        mappings_end_kept(last.number);
        if (last.kept != 0) CALL(copies_at_hand(), cuMemRelease, last.kept);
        spare_drop(&last);
    }
}

static bool free_spare(void) {
    for (bool any = false;; any = true) {
        mapping found = {0};
        pthread_mutex_lock(&mappings_lock);
        for (size_t i = 0; found.spare == 0 && i < mappings.count; ++i) {
            mapping *const m = &ITEMS(mapping, mappings)[i];
            found = *m;
            m->spare = 0;
        }
        mappings_changed();
        pthread_mutex_unlock(&mappings_lock);
        if (found.spare == 0) return any;
        spare_drop(&found);
    }
}

bool spare_give_up(void) {
    const bool kept = free_retired(), spare = free_spare();
    return kept || spare;
}

// Spare memory for all that is mapped; what is lacking, if there is too little. No call is under way, so the list is what it is.
static const char *find_room(uint64_t most, int device) {
    size_t wanted = 0, missing = 0, left = 0, all = 0;
    for (size_t i = 0; i < mappings.count; ++i) {
        const mapping *const m = &ITEMS(mapping, mappings)[i];
        wanted += m->size;
        if (m->spare == 0) missing += m->size;
    }
    if (wanted > most) return "MPSGUARD_SECOND_SPARE_MIB";
    if (missing == 0) return NULL;
    if (CALL(copies_at_hand(), cuMemGetInfo_v2, WORD(&left), WORD(&all)) != MG_SUCCESS || left < missing + MARGIN)
        return "the GPU has no more";
    for (size_t i = 0; i < mappings.count; ++i) {
        mapping *const m = &ITEMS(mapping, mappings)[i];
        if (m->spare == 0 && !make(m, device)) return "the driver has no more";
    }
    return NULL;
}

bool spare_make_room(uint64_t most, int device) {
    free_retired();
    if (copying.of != copies_at_hand()) copying = (__typeof__(copying)){.of = copies_at_hand()};
    if (copying.stream == 0 && CALL(copies_at_hand(), cuStreamCreate, WORD(&copying.stream), 1) != MG_SUCCESS) return false;
    const char *const lack = find_room(most, device);
    if (lack == NULL) return true;
    log_cannot_begin(REASON_no_spare_memory, lack);
    free_spare();
    return false;
}

bool spare_fill(void) {
    bool right = true;
    for (size_t i = 0; right && i < mappings.count; ++i) {
        mapping *const m = &ITEMS(mapping, mappings)[i];
        if (m->access.flags != 0)
            right = CALL(copies_at_hand(), cuMemcpyDtoDAsync_v2, m->spare, m->at, m->size, copying.stream) == MG_SUCCESS;
        m->since_epoch = false;
        m->was_untouched = m->untouched;
    }
    return right && CALL(copies_at_hand(), cuStreamSynchronize, copying.stream) == MG_SUCCESS;
}

static bool fill_with_zero(const mapping *m) {
    return CALL(copies_at_work(), cuMemsetD8Async, m->at, 0, m->size, WORD(MG_STREAM_LEGACY)) == MG_SUCCESS;
}

static bool restore(const mapping *m) {
    if (m->since_epoch) return true;
    if (!ahead_map(m)) return false;
    if (m->access.flags == 0) return true;
    if (m->was_untouched) return fill_with_zero(m);
    return ahead_map_spare(m) &&
           CALL(copies_at_work(), cuMemcpyDtoDAsync_v2, m->at, m->spare, m->size, WORD(MG_STREAM_LEGACY)) == MG_SUCCESS;
}

bool spare_restore(void) {
    bool right = true;
    // First of all: at the epoch there may have been another one at its address.
    for (size_t i = 0; right && i < retired.count; ++i)
        if (ITEMS(mapping, retired)[i].since_epoch) right = ahead_make_way(&ITEMS(mapping, retired)[i]);
    for (size_t i = 0; right && i < retired.count; ++i) right = restore(&ITEMS(mapping, retired)[i]);
    for (size_t i = 0; right && i < mappings.count; ++i) right = restore(&ITEMS(mapping, mappings)[i]);
    return right;
}

bool spare_repeat(const log_entry *entry) {
    const mapping *m = mappings_find(entry->words[0]);
    if (m == NULL) m = mappings_find_retired(entry->words[0]);
    if (m == NULL) return false;
    if (entry->kind == LOG_UNMAP) return ahead_unmap(m);
    return ahead_map(m) && (m->access.flags == 0 || fill_with_zero(m));
}

void spare_end(void) {
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; i < mappings.count; ++i) {
        ITEMS(mapping, mappings)[i].spare = 0;
        ITEMS(mapping, mappings)[i].kept = 0;
    }
    for (size_t i = 0; i < retired.count; ++i) mappings_end_kept(ITEMS(mapping, retired)[i].number);
    retired.count = 0;
    held = 0;
    mappings_changed();
    pthread_mutex_unlock(&mappings_lock);
}
