#include "second/ahead.h"

#include <stdatomic.h>

#include "second/host_memory.h"
#include "second/reasons.h"

// What the second driver has mapped: the memory of a mapping, or spare memory of it. By their numbers, which none has twice.
typedef struct {
    word of, spare;  // `spare` 0: the mapping itself
    uint64_t at, size;
    mg_access access;
    bool unsure;     // a call failed: it may be mapped, or not, or without its access
    word turn;       // how often any was mapped before
} piece;

typedef struct {
    uint64_t at, size;
} range;

// One that something was made of.
typedef struct {
    word of, turn;
} use;

static list pieces;
static list spares;                          // ranges of the copy at hand, of spare memory of the one before
static _Atomic bool any;                     // of them
static _Atomic word done_with = UINT64_MAX;  // changes of what the program has
static word newest, old;                     // numbers: at this look, and at the one before
static word turns, changes;
static bool without_range;

// Where the piece is, or would be.
static size_t find(word of, word spare) {
    size_t from = 0, to = pieces.count;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        const piece *const p = &ITEMS(piece, pieces)[middle];
        if (p->of < of || (p->of == of && p->spare < spare)) from = middle + 1;
        else to = middle;
    }
    return from;
}

static piece *known(word of, word spare) {
    const size_t i = find(of, spare);
    piece *const p = i < pieces.count ? &ITEMS(piece, pieces)[i] : NULL;
    return p != NULL && p->of == of && p->spare == spare ? p : NULL;
}

// Of the mappings, or also of those that a repetition needs, whether it is one as it was.
static bool is_had(const piece *p, bool with_retired) {
    const mapping *m = mappings_find(p->of);
    if (m == NULL && with_retired) m = mappings_find_retired(p->of);
    return m != NULL && (p->spare == 0 || (m->spare != 0 && m->spare_number == p->spare));
}

static bool unmap(size_t i) {
    const piece *const p = &ITEMS(piece, pieces)[i];
    if (CALL(copies_at_work(), cuMemUnmap, p->at, p->size) != MG_SUCCESS && !p->unsure) return false;
    list_drop(&pieces, sizeof *p, i);
    atomic_store(&any, pieces.count > 0);
    ++changes;
    return true;
}

static bool is_between(const piece *p, uint64_t at, uint64_t size) { return p->at < at + size && at < p->at + p->size; }

static bool is_taken(uint64_t at, uint64_t size) {
    for (size_t i = 0; i < pieces.count; ++i)
        if (is_between(&ITEMS(piece, pieces)[i], at, size)) return true;
    return false;
}

static bool has_access(const piece *p, const mapping *m) {
    return p->access.flags == m->access.flags && p->access.location.type == m->access.location.type &&
           p->access.location.id == m->access.location.id;
}

static bool clear(uint64_t at, uint64_t size) {
    for (size_t i = pieces.count; i-- > 0;)
        if (is_between(&ITEMS(piece, pieces)[i], at, size) && !unmap(i)) return false;
    return true;
}

// Makes what is mapped at its address this one.
static bool place(const mapping *m, word of, word spare) {
    piece *p = known(of, spare);
    if (p != NULL && !p->unsure) {
        if (has_access(p, m)) return true;
        p->unsure = true;
        if (m->access.flags != 0 && mappings_give_access(m)) {
            p->access = m->access;
            p->unsure = false;
            ++changes;
            return true;
        }
    }
    if (!clear(m->at, m->size)) return false;
    p = list_insert(&pieces, sizeof *p, find(of, spare));
    if (p == NULL) return false;
    atomic_store(&any, true);
    *p = (piece){of, spare, m->at, m->size, m->access, true, ++turns};
    ++changes;
    p->unsure = !mappings_move(m);
    return !p->unsure;
}

static mapping spare_of(const mapping *m) {
    return (mapping){.at = m->spare, .size = m->size, .access = {m->access.location, MG_ACCESS_READ_WRITE}};
}

bool ahead_map(const mapping *m) {
    return copies_at_work()->place == PLACE_LANE ? place(m, m->number, 0) : mappings_move(m);
}

bool ahead_make_way(const mapping *m) {
    return copies_at_work()->place != PLACE_LANE || known(m->number, 0) != NULL || clear(m->at, m->size);
}

bool ahead_map_spare(const mapping *m) {
    const mapping spare = spare_of(m);
    return copies_at_work()->place == PLACE_LANE ? place(&spare, m->number, m->spare_number) : mappings_move(&spare);
}

bool ahead_unmap(const mapping *m) {
    if (CALL(copies_at_work(), cuMemUnmap, m->at, m->size) != MG_SUCCESS) return false;
    const piece *const p = copies_at_work()->place == PLACE_LANE ? known(m->number, 0) : NULL;
    if (p != NULL) list_drop(&pieces, sizeof *p, (size_t)(p - ITEMS(piece, pieces)));
    ++changes;
    return true;
}

word ahead_changes(void) { return changes; }

// Under mappings_lock. Those that are looked for one after another are few.
static const mapping *mapping_of(word at, uint64_t size) {
    static size_t last;
    for (size_t i = 0; i < mappings.count; ++i, ++last) {
        if (last >= mappings.count) last = 0;
        const mapping *const m = &ITEMS(mapping, mappings)[last];
        if (at - m->at < m->size) return size <= m->size - (at - m->at) ? m : NULL;
    }
    return NULL;
}

static bool note_use(list *uses, const piece *p) {
    for (size_t i = uses->count; i-- > 0;)
        if (ITEMS(use, *uses)[i].of == p->of) return ITEMS(use, *uses)[i].turn == p->turn;
    use *const noted = list_insert(uses, sizeof *noted, uses->count);
    if (noted != NULL) *noted = (use){p->of, p->turn};
    return noted != NULL;
}

bool ahead_use(list *uses, word at, uint64_t size) {
    pthread_mutex_lock(&mappings_lock);
    const mapping *const m = mapping_of(at, size);
    const piece *const p = m != NULL && m->access.flags != 0 ? known(m->number, 0) : NULL;
    const bool there = p != NULL && !p->unsure && has_access(p, m);
    pthread_mutex_unlock(&mappings_lock);
    return there && note_use(uses, p);
}

bool ahead_stands(const list *uses) {
    bool stands = true;
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; stands && i < uses->count; ++i) {
        const use *const u = &ITEMS(use, *uses)[i];
        const piece *const p = known(u->of, 0);
        stands = p != NULL && !p->unsure && p->turn == u->turn && mappings_find(u->of) != NULL;
    }
    pthread_mutex_unlock(&mappings_lock);
    return stands;
}

bool ahead_is_behind(void) { return atomic_load(&any) && mappings_changes() != atomic_load(&done_with); }

void ahead_look(void) {
    old = newest;
    pthread_mutex_lock(&mappings_lock);
    newest = mappings.count > 0 ? ITEMS(mapping, mappings)[mappings.count - 1].number : 0;
    pthread_mutex_unlock(&mappings_lock);
    host_memory_age();
}

static bool is_stale(size_t i, bool with_retired) {
    pthread_mutex_lock(&mappings_lock);
    const bool had = is_had(&ITEMS(piece, pieces)[i], with_retired);
    pthread_mutex_unlock(&mappings_lock);
    return !had;
}

bool ahead_drop(bool with_retired) {
    bool done = false;
    for (size_t i = pieces.count; i-- > 0;)
        if (is_stale(i, with_retired)) done = unmap(i) || done;
    return done;
}

// Whether it is to be mapped ahead, or given another access. What failed is left for the takeover.
static bool is_lacking(const mapping *m, word spare) {
    const uint64_t at = spare == 0 ? m->at : m->spare;
    const piece *const p = known(m->number, spare);
    if (p == NULL) return !is_taken(at, m->size);
    return spare == 0 && !p->unsure && !has_access(p, m);
}

// The next one, as it is now. `all`: none is left for a later look.
static bool pick(mapping *out, word *spare, bool *all) {
    bool found = false;
    *all = true;
    pthread_mutex_lock(&mappings_lock);
    for (size_t i = 0; !found && i < mappings.count; ++i) {
        const mapping *const m = &ITEMS(mapping, mappings)[i];
        // Memory of a short life is not worth it.
        if (m->number > old) {
            *all = false;
            break;
        }
        // Of what could not have content at the epoch none is put back.
        const bool copied = m->spare != 0 && m->access.flags != 0 && !m->was_untouched;
        *out = *m;
        if ((found = is_lacking(m, 0))) *spare = 0;
        else if ((found = copied && is_lacking(m, m->spare_number))) *spare = m->spare_number;
    }
    pthread_mutex_unlock(&mappings_lock);
    return found;
}

// The program may have unmapped it before the first driver was asked for what is at its address, and that may have been another one.
static void map_ahead(const mapping *m, word spare) {
    const mapping what = spare == 0 ? *m : spare_of(m);
    place(&what, m->number, spare);
    const size_t i = find(m->number, spare);
    if (known(m->number, spare) != NULL && is_stale(i, false)) {
        ITEMS(piece, pieces)[i].unsure = true;
        unmap(i);
    }
}

ahead_result ahead_step(void) {
    const word now = mappings_changes();
    mapping m;
    word spare;
    reason why;
    bool all;
    if (now == atomic_load(&done_with)) return AHEAD_DONE;
    for (size_t i = 0; i < pieces.count; ++i)
        if (is_stale(i, true)) return unmap(i) ? AHEAD_UNMAPPED : AHEAD_DONE;
    if (host_memory_drop()) return AHEAD_UNMAPPED;
    // A program that would be refused needs none.
    if (without_range || reasons_any(&why)) return AHEAD_DONE;
    if (pick(&m, &spare, &all)) {
        without_range = !mappings_reserve_again();
        if (!without_range) map_ahead(&m, spare);
        return without_range ? AHEAD_DONE : AHEAD_MAPPED;
    }
    if (host_memory_step(&all)) return AHEAD_MAPPED;
    if (all) atomic_store(&done_with, now);
    return AHEAD_DONE;
}

void ahead_go_on(void) {
    spares.count = 0;
    for (size_t i = 0; i < pieces.count; ++i) {
        const piece *const p = &ITEMS(piece, pieces)[i];
        range *const left = p->spare != 0 ? list_insert(&spares, sizeof *left, spares.count) : NULL;
        if (left != NULL) *left = (range){p->at, p->size};
    }
    pieces.count = 0;
    ++changes;
    without_range = false;
    atomic_store(&any, false);
    atomic_store(&done_with, UINT64_MAX);
}

void ahead_end(void) {
    for (; spares.count > 0; --spares.count) {
        const range *const left = &ITEMS(range, spares)[spares.count - 1];
        CALL(copies_at_work(), cuMemUnmap, left->at, left->size);
    }
}

void ahead_give_up(bool reachable) {
    for (size_t i = 0; reachable && i < pieces.count; ++i) {
        const piece *const p = &ITEMS(piece, pieces)[i];
        CALL(copies_at_work(), cuMemUnmap, p->at, p->size);
    }
    pieces.count = 0;
    ++changes;
    host_memory_leave(reachable);
    atomic_store(&any, false);
    without_range = false;
    atomic_store(&done_with, UINT64_MAX);
}
