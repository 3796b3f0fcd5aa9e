#define _GNU_SOURCE
#include "second/mappings.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "second/reasons.h"

#define ARENA ((uint64_t)4 << 40)

typedef struct {
    uint64_t at, size;
} range;

pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
list mappings, retired;

static _Atomic uint64_t arena;
static bool reserved_in[COPIES];  // by the number of the copy
static list used;
static _Atomic word changes;

void *list_insert(list *l, size_t size, size_t i) {
    if (l->count == l->room) {
        const size_t room = l->room > 0 ? 2 * l->room : 64;
        char *const more = realloc(l->items, room * size);
        if (more == NULL) return NULL;
        l->items = more;
        l->room = room;
    }
    memmove(l->items + size * (i + 1), l->items + size * i, size * (l->count++ - i));
    return l->items + size * i;
}

void *list_add(list *l, size_t size) {
    void *const made = list_insert(l, size, l->count);
    if (made == NULL) reasons_hold(REASON_no_memory);
    return made;
}

void list_drop(list *l, size_t size, size_t i) {
    memmove(l->items + size * i, l->items + size * (i + 1), size * (--l->count - i));
}

word mappings_number(void) {
    static word newest;
    return ++newest;
}

mapping *mappings_find(word number) {
    size_t from = 0, to = mappings.count;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        mapping *const m = &ITEMS(mapping, mappings)[middle];
        if (m->number == number) return m;
        if (m->number < number) from = middle + 1;
        else to = middle;
    }
    return NULL;
}

mapping *mappings_find_retired(word number) {
    for (size_t i = 0; i < retired.count; ++i)
        if (ITEMS(mapping, retired)[i].number == number) return &ITEMS(mapping, retired)[i];
    return NULL;
}

void mappings_changed(void) { atomic_fetch_add(&changes, 1); }
word mappings_changes(void) { return atomic_load(&changes); }

static bool reserve_arena(const driver_copy *copy, uint64_t wanted) {
    word got = 0;
    if (CALL(copy, cuMemAddressReserve, WORD(&got), ARENA, MAPPINGS_UNIT, wanted, 0) != MG_SUCCESS) return false;
    if (got == wanted) {
        copies_share_addresses(got, ARENA);
        return true;
    }
    CALL(copy, cuMemAddressFree, got, ARENA);
    return false;
}

bool mappings_have(word address) { return arena != 0 && address >= arena && address - arena < ARENA; }

// Far from where the kernel and the driver place anything by themselves: the same addresses are free in the second driver.
bool mappings_have_range(const driver_copy *copy) {
    static pthread_mutex_t reserving = PTHREAD_MUTEX_INITIALIZER;
    static const uint64_t places[] = {UINT64_C(0x300000000000), UINT64_C(0x200000000000), UINT64_C(0x400000000000)};
    pthread_mutex_lock(&reserving);
    for (size_t i = 0; arena == 0 && i < sizeof places / sizeof *places; ++i)
        if ((reserved_in[copy->number] = reserve_arena(copy, places[i]))) arena = places[i];
    pthread_mutex_unlock(&reserving);
    return arena != 0;
}

bool mappings_reserve_again(void) {
    bool *const done = &reserved_in[copies_at_work()->number];
    if (arena != 0 && !*done) *done = reserve_arena(copies_at_work(), arena);
    return arena == 0 || *done;
}

// The first gap that fits. The list is by address.
uint64_t mappings_take(uint64_t size, uint64_t alignment) {
    uint64_t at = arena;
    size_t i = 0;
    if (alignment < MAPPINGS_UNIT) alignment = MAPPINGS_UNIT;
    for (; i < used.count; ++i) {
        const range *const r = &ITEMS(range, used)[i];
        if (at + size <= r->at) break;
        at = (r->at + r->size + alignment - 1) & ~(alignment - 1);
    }
    if (at + size > arena + ARENA || list_insert(&used, sizeof(range), i) == NULL) return 0;
    ITEMS(range, used)[i] = (range){at, size};
    return at;
}

bool mappings_give_back(uint64_t at, uint64_t size) {
    for (size_t i = 0; i < used.count; ++i) {
        const range *const r = &ITEMS(range, used)[i];
        if (r->at != at || r->size != size) continue;
        list_drop(&used, sizeof(range), i);
        return true;
    }
    return false;
}

// Descriptors of memory that is not exported again, by the keys of that.
typedef struct {
    word key;
    int fd;
} kept_fd;
static list kept;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;  // the innermost one
#define HANDLE_KEY ((word)1 << 63)

word mappings_key_of_handle(word handle) { return handle | HANDLE_KEY; }

// Under `keeping`.
static int kept_of(word key) {
    for (size_t i = 0; key != 0 && i < kept.count; ++i)
        if (ITEMS(kept_fd, kept)[i].key == key) return ITEMS(kept_fd, kept)[i].fd;
    return -1;
}

// Half of what the program may have open is left to it.
static bool may_keep(void) {
    struct rlimit most;
    return getrlimit(RLIMIT_NOFILE, &most) != 0 || kept.count < most.rlim_cur / 2;
}

static bool keep(word key, int fd) {
    kept_fd *const made = key != 0 && may_keep() ? list_insert(&kept, sizeof *made, kept.count) : NULL;
    if (made != NULL) *made = (kept_fd){key, fd};
    return made != NULL;
}

void mappings_share_kept(word from, word to) {
    pthread_mutex_lock(&keeping);
    const int of = kept_of(from), fd = of >= 0 ? fcntl(of, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd >= 0 && !keep(to, fd)) close(fd);
    pthread_mutex_unlock(&keeping);
}

void mappings_end_kept(word key) {
    pthread_mutex_lock(&keeping);
    for (size_t i = kept.count; i-- > 0;) {
        if (ITEMS(kept_fd, kept)[i].key != key) continue;
        close(ITEMS(kept_fd, kept)[i].fd);
        list_drop(&kept, sizeof(kept_fd), i);
    }
    pthread_mutex_unlock(&keeping);
}

static bool export_of(const driver_copy *copy, word handle, int *fd) {
    return CALL(copy, cuMemExportToShareableHandle, WORD(fd), handle, MG_HANDLE_POSIX, 0) == MG_SUCCESS;
}

// Whether a driver exports what it has imported: that was not measured, so it is tried, once.
static bool exports_again(word imported) {
    static _Atomic enum { UNTRIED, DOES, DOES_NOT } known;
    int fd = -1;
    if (known == UNTRIED) known = export_of(copies_at_work(), imported, &fd) ? DOES : DOES_NOT;
    if (fd >= 0) close(fd);
    return known == DOES;
}

bool mappings_carry(word key, word handle, word *next) {
    pthread_mutex_lock(&keeping);
    const int before = kept_of(key);
    int fd = before >= 0 ? fcntl(before, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&keeping);
    if (fd < 0 && !export_of(copies_at_hand(), handle, &fd)) return false;
    bool held = false;
    const bool done = CALL(copies_at_work(), cuMemImportFromShareableHandle, WORD(next), (word)fd, MG_HANDLE_POSIX) == MG_SUCCESS;
    if (done && before < 0 && key != 0 && copies_at_work()->place == PLACE_LANE && !exports_again(*next)) {
        pthread_mutex_lock(&keeping);
        held = fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && keep(key, fd);
        pthread_mutex_unlock(&keeping);
    }
    if (!held) close(fd);
    return done;
}

bool mappings_move(const mapping *m) {
    word handle = m->kept, next = 0;
    if (handle == 0 && CALL(copies_at_hand(), cuMemRetainAllocationHandle, WORD(&handle), m->at) != MG_SUCCESS) return false;
    const bool carried = mappings_carry(m->number, handle, &next);
    if (m->kept == 0) CALL(copies_at_hand(), cuMemRelease, handle);
    if (!carried) return false;
    const bool mapped = CALL(copies_at_work(), cuMemMap, m->at, m->size, m->offset, next, 0) == MG_SUCCESS;
    CALL(copies_at_work(), cuMemRelease, next);
    return mapped && (m->access.flags == 0 || mappings_give_access(m));
}

bool mappings_give_access(const mapping *m) {
    mg_access access = m->access;
    access.location.id = (int)copies_at_work()->device;
    return CALL(copies_at_work(), cuMemSetAccess, m->at, m->size, WORD(&access), 1) == MG_SUCCESS;
}

static void leave(const list *of) {
    for (size_t i = 0; i < of->count; ++i) {
        const mapping *const m = &ITEMS(mapping, *of)[i];
        // Some are not mapped there: that is an error, and no harm.
        CALL(copies_at_work(), cuMemUnmap, m->at, m->size);
        if (m->spare != 0) CALL(copies_at_work(), cuMemUnmap, m->spare, m->size);
    }
}

void mappings_leave(void) {
    pthread_mutex_lock(&mappings_lock);
    leave(&mappings);
    leave(&retired);
    pthread_mutex_unlock(&mappings_lock);
}
