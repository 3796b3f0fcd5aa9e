#define _GNU_SOURCE
#include "second/variables.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "second/images.h"
#include "second/log.h"
#include "second/memory.h"
#include "second/objects.h"
#include "second/reasons.h"

#define MOST_BYTES ((uint64_t)64 << 20)
#define UNIT ((uint64_t)2 << 20)
#define ALIGNMENT 256
#define NOWHERE UINT64_MAX

typedef struct variable {
    const char *name;
    uint64_t size;
    word told;        // the address that the program knows; NOWHERE: it knows none
    word at[COPIES];  // the address in each copy, by its number; 0: not known
    unsigned char *saved, *initial;
    bool read;  // into `saved`
    struct variable *next;
} variable;

// A module or a library that was looked at.
typedef struct module {
    const object *of;
    word at[COPIES];  // the module of each copy, by its number; 0: not made there
    variable *variables;
    struct module *next;
} module;

typedef struct asked {
    word of;  // key of a module or a library
    char *name;
    struct asked *next;
} asked;

typedef struct placed {
    word of, at;
    uint64_t size;
    char *name;
    struct placed *next;
} placed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // of modules
static _Atomic(module *) modules;
static uint64_t bytes;
// Ours, of a copy.
static struct {
    const driver_copy *of;
    word stream;
    unsigned char *staging;  // a driver copies to memory that it does not know one after the other
    uint64_t staging_bytes;
} reading;
static _Atomic uint64_t saved_behind = UINT64_MAX;

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;  // of what is below
static asked *questions;  // of which it is not known yet
static placed *places;
static word room;  // memory for places
static uint64_t room_used;

static module *find(word key) {
    for (module *m = modules; m != NULL; m = m->next)
        if (m->of->key == key && !m->of->gone) return m;
    return NULL;
}

static bool was_looked_at(const object *o) {
    for (const module *m = modules; m != NULL; m = m->next)
        if (m->of == o) return true;
    return false;
}

// A library of which nothing was asked may not be loaded yet, and has run nothing.
static bool is_in_use(const object *of) {
    if (of->kind == OBJECT_MODULE || atomic_load_explicit(&of->asked_in, memory_order_acquire) != 0) return true;
    for (const object *o = objects_newest(); o != NULL; o = o->older)
        if (o->parent == of && !o->gone) return true;
    return false;
}

// Whether the program was told an address of it by another copy, before it was looked at.
static bool was_asked_elsewhere(const object *of, const driver_copy *copy) {
    bool found = false;
    for (const object *o = objects_newest(); !found && o != NULL; o = o->older) {
        const unsigned asked_in = o == of || o->parent == of ? atomic_load_explicit(&o->asked_in, memory_order_acquire) : 0;
        found = asked_in != 0 && asked_in != copy->number + 1;
    }
    return found;
}

static bool add(module *to, const driver_copy *copy, word handle, const image_variable *known) {
    word address = 0, size = 0;
    // The image has more than the module: other architectures, and what no kernel uses.
    if (CALL(copy, cuModuleGetGlobal_v2, WORD(&address), WORD(&size), handle, WORD(known->name)) != MG_SUCCESS)
        return true;
    variable *const made = calloc(1, sizeof *made);
    unsigned char *const saved = size <= MOST_BYTES - bytes ? malloc(size) : NULL;
    if (made == NULL || saved == NULL) {
        free(made);
        free(saved);
        reasons_hold(REASON_no_memory);
        return false;
    }
    *made = (variable){.name = known->name, .size = size, .told = NOWHERE, .saved = saved, .next = to->variables};
    made->at[copy->number] = address;
    // What the program has asked for, or will, it is told by the copy at hand.
    if (copy == copies_at_hand()) made->told = address;
    bytes += size;
    to->variables = made;
    return true;
}

// `handle` is the copy's for it.
static bool look_at(const object *o, const driver_copy *copy, word handle) {
    if (o->kind == OBJECT_LIBRARY && CALL(copy, cuLibraryGetModule, WORD(&handle), handle) != MG_SUCCESS) return false;
    long count = 0;
    const image_variable *const names = o->code != NULL ? images_variables(o->code, &count) : NULL;
    if (o->code == NULL || count < 0) reasons_hold(REASON_unread_modules);
    else if (images_use_heap(o->code)) reasons_hold(REASON_device_heap);
    else if (images_have_pointers(o->code)) reasons_hold_for(REASON_device_variables, "addresses in variables");
    if (count > 0 && was_asked_elsewhere(o, copy)) reasons_hold_for(REASON_device_variables, "asked of a driver that is gone");
    module *const made = calloc(1, sizeof *made);
    if (made == NULL) return false;
    made->of = o;
    made->at[copy->number] = handle;
    for (long i = 0; i < count; ++i)
        if (!add(made, copy, handle, &names[i])) return false;
    made->next = modules;
    modules = made;
    return true;
}

static bool have_staging(const driver_copy *copy) {
    if (reading.staging_bytes >= bytes) return true;
    if (reading.staging != NULL) CALL(copy, cuMemFreeHost, WORD(reading.staging));
    reading.staging = NULL;
    reading.staging_bytes = 0;
    if (CALL(copy, cuMemHostAlloc, WORD(&reading.staging), 2 * bytes, 0) != MG_SUCCESS) return false;
    reading.staging_bytes = 2 * bytes;
    return true;
}

// Of a module that was not made in this copy no kernel has run here.
static const variable *first_in(const module *m, const driver_copy *copy) {
    return m->of->gone || m->at[copy->number] == 0 ? NULL : m->variables;
}

// All of them, or none: what is half read is of no use.
static bool read_all(void) {
    const driver_copy *const copy = copies_at_hand();
    uint64_t at = 0;
    if (reading.of != copy) reading = (__typeof__(reading)){.of = copy};
    if (reading.stream == 0 && CALL(copy, cuStreamCreate, WORD(&reading.stream), 1) != MG_SUCCESS) return false;
    if (!have_staging(copy)) return false;
    for (const module *m = modules; m != NULL; m = m->next) {
        for (const variable *v = first_in(m, copy); v != NULL; v = v->next) {
            if (CALL(copy, cuMemcpyDtoHAsync_v2, WORD(reading.staging + at), v->at[copy->number], v->size, reading.stream) != MG_SUCCESS) return false;
            at += v->size;
        }
    }
    if (CALL(copy, cuStreamSynchronize, reading.stream) != MG_SUCCESS) return false;
    at = 0;
    for (const module *m = modules; m != NULL; m = m->next) {
        if (first_in(m, copy) == NULL) continue;
        for (variable *v = m->variables; v != NULL; v = v->next) {
            memcpy(v->saved, reading.staging + at, v->size);
            v->read = true;
            at += v->size;
        }
    }
    return true;
}

static bool is_constant(const asked *a) {
    const object *o = objects_find(a->of);
    if (o != NULL && o->kind == OBJECT_MODULE_OF_LIBRARY) o = o->parent;
    if (o == NULL || o->code == NULL) return false;
    long count = 0;
    const image_variable *const all = images_variables(o->code, &count);
    for (long i = 0; i < count; ++i)
        if (strcmp(all[i].name, a->name) == 0) return all[i].constant;
    return false;
}

void variables_answer(void) {
    pthread_mutex_lock(&asking);
    asked *list = questions;
    questions = NULL;
    pthread_mutex_unlock(&asking);
    pthread_mutex_lock(&lock);
    while (list != NULL) {
        asked *const a = list;
        list = a->next;
        if (is_constant(a)) reasons_let_go(REASON_device_variables);
        free(a->name);
        free(a);
    }
    pthread_mutex_unlock(&lock);
}

// Under the lock.
static bool look_at_all(void) {
    driver_copy *const copy = copies_at_hand();
    bool all = CALL(copy, cuCtxSetCurrent, copy->context) == MG_SUCCESS;
    for (const object *o = objects_newest(); all && o != NULL; o = o->older) {
        const word native = atomic_load_explicit(&o->at[copy->number], memory_order_acquire);
        if (o->gone || native == 0 || (o->kind != OBJECT_MODULE && o->kind != OBJECT_LIBRARY) || was_looked_at(o) || !is_in_use(o)) continue;
        all = look_at(o, copy, native);
    }
    return all;
}

bool variables_look(void) {
    pthread_mutex_lock(&lock);
    const bool all = look_at_all();
    pthread_mutex_unlock(&lock);
    return all;
}

bool variables_save(uint64_t total) {
    pthread_mutex_lock(&lock);
    const bool all = look_at_all() && read_all();
    pthread_mutex_unlock(&lock);
    if (all) atomic_store_explicit(&saved_behind, total, memory_order_release);
    return all;
}

bool variables_are_saved(uint64_t total) {
    return total == 0 || atomic_load_explicit(&saved_behind, memory_order_acquire) == total;
}

void variables_go_on(void) { atomic_store_explicit(&saved_behind, UINT64_MAX, memory_order_release); }

static bool write_saved(variable *v, bool *wrote) {
    // A module that was loaded since has what it has at first.
    if (!v->read || (v->initial != NULL && memcmp(v->initial, v->saved, v->size) == 0)) return true;
    *wrote = true;
    // Two thousand that are waited for one by one take seconds where the GPU is shared in slices (4.8 s alone, H200, 580).
    return CALL(copies_at_work(), cuMemcpyHtoDAsync_v2, v->at[copies_at_work()->number], WORD(v->saved), v->size, 0) == MG_SUCCESS;
}

// The program's streams do not wait for the default one: what was copied has to be there before any kernel runs.
static bool is_written(bool wrote) { return !wrote || CALL(copies_at_work(), cuStreamSynchronize, 0) == MG_SUCCESS; }

// What it wrote is there behind is_written alone.
static bool made(module *m, bool taken_over, bool *wrote) {
    const unsigned number = copies_at_work()->number;
    bool right = true;
    for (variable *v = m->variables; right && v != NULL; v = v->next) {
        word size = v->size;
        right = v->at[number] != 0 ||
                CALL(copies_at_work(), cuModuleGetGlobal_v2, WORD(&v->at[number]), WORD(&size), m->at[number], WORD(v->name)) ==
                    MG_SUCCESS;
        right = right && size == v->size;
        if (!right) break;
        if (taken_over) right = write_saved(v, wrote);
        else if (v->initial == NULL && (v->initial = malloc(v->size)) != NULL)
            right = CALL(copies_at_work(), cuMemcpyDtoH_v2, WORD(v->initial), v->at[number], v->size) == MG_SUCCESS;
    }
    return right;
}

bool variables_module_made(word key, word second_module, bool taken_over) {
    bool right = true, wrote = false;
    pthread_mutex_lock(&lock);
    module *const m = find(key);
    if (m != NULL) {
        m->at[copies_at_work()->number] = second_module;
        right = made(m, taken_over, &wrote) && is_written(wrote);
    }
    pthread_mutex_unlock(&lock);
    return right;
}

// Those that the second driver has already; the others are made later, and written then.
static bool each_made(bool taken_over) {
    const unsigned number = copies_at_work()->number;
    bool right = true, wrote = false;
    pthread_mutex_lock(&lock);
    for (module *m = modules; right && m != NULL; m = m->next) {
        const word second = atomic_load_explicit(&m->of->at[number], memory_order_acquire);
        if (m->of->gone || second == 0 || (m->at[number] != 0 && !taken_over)) continue;
        // It was made before it was looked at.
        if (m->at[number] == 0 && m->of->kind == OBJECT_LIBRARY)
            right = CALL(copies_at_work(), cuLibraryGetModule, WORD(&m->at[number]), second) == MG_SUCCESS;
        else if (m->at[number] == 0) m->at[number] = second;
        right = right && made(m, taken_over, &wrote);
    }
    right = right && is_written(wrote);
    pthread_mutex_unlock(&lock);
    return right;
}

bool variables_ahead(void) { return each_made(false); }
bool variables_restore(void) { return each_made(true); }

bool variables_take(void) {
    const unsigned number = copies_at_work()->number;
    bool right = true;
    pthread_mutex_lock(&lock);
    // Those of modules that came after the last epoch: the first driver was not asked for them, and does not answer any more.
    for (const object *o = objects_newest(); right && o != NULL; o = o->older) {
        const word second = atomic_load_explicit(&o->at[number], memory_order_acquire);
        if (second == 0 || o->gone || (o->kind != OBJECT_MODULE && o->kind != OBJECT_LIBRARY) || was_looked_at(o)) continue;
        right = look_at(o, copies_at_work(), second);
    }
    for (module *m = modules; right && m != NULL; m = m->next) {
        for (variable *v = m->of->gone ? NULL : m->variables; right && v != NULL; v = v->next) {
            // Of a module that was not made here no kernel has run.
            if (v->at[number] == 0) continue;
            v->read = right = CALL(copies_at_work(), cuMemcpyDtoH_v2, WORD(v->saved), v->at[number], v->size) == MG_SUCCESS;
        }
    }
    pthread_mutex_unlock(&lock);
    return right;
}

word variables_translate(word address, word *owner) {
    *owner = 0;
    for (const module *m = modules; m != NULL; m = m->next) {
        if (m->of->gone) continue;
        for (const variable *v = m->variables; v != NULL; v = v->next) {
            if (address < v->told || address - v->told >= v->size) continue;
            const word second = v->at[copies_at_work()->number];
            if (second != 0) return second + (address - v->told);
            *owner = m->of->key;
            return address;
        }
    }
    return address;
}

bool variables_have(word address) {
    for (const module *m = modules; m != NULL; m = m->next)
        for (const variable *v = m->of->gone ? NULL : m->variables; v != NULL; v = v->next)
            if (address >= v->told && address - v->told < v->size) return true;
    return false;
}

// Memory that moves, in which variables are given places. Under `asking`.
static bool have_room(void) {
    if (room != 0) return true;
    mg_device device = 0;
    if (CALL(copies_at_hand(), cuCtxGetDevice, WORD(&device)) != MG_SUCCESS) return false;
    const mg_allocation_properties wanted = {.type = MG_MEMORY_PINNED, .location = {MG_LOCATION_DEVICE, device}};
    const mg_access access = {{MG_LOCATION_DEVICE, device}, MG_ACCESS_READ_WRITE};
    word handle = 0;
    if (memory_create(copies_at_hand(), (const word[]){WORD(&handle), UNIT, WORD(&wanted), 0}) != MG_SUCCESS) return false;
    bool done = memory_reserve(copies_at_hand(), (const word[]){WORD(&room), UNIT, UNIT, 0, 0}) == MG_SUCCESS &&
                memory_map(copies_at_hand(), (const word[]){room, UNIT, 0, handle, 0}) == MG_SUCCESS;
    memory_release(copies_at_hand(), (const word[]){handle});
    done = done && memory_set_access(copies_at_hand(), (const word[]){room, UNIT, WORD(&access), 1}) == MG_SUCCESS;
    if (!done) room = 0;
    return done;
}

// The content of `size` bytes at another address, there before any work that is enqueued from now on.
static bool copy_content(word to, word from, uint64_t size) {
    const word words[] = {to, from, size};
    void *const between = malloc(size);
    const bool done = between != NULL && CALL(copies_at_hand(), cuMemcpyDtoH_v2, WORD(between), from, size) == MG_SUCCESS &&
                      CALL(copies_at_hand(), cuMemcpyHtoD_v2, to, WORD(between), size) == MG_SUCCESS &&
                      CALL(copies_at_hand(), cuStreamSynchronize, 0) == MG_SUCCESS;
    log_entry *const entry = done ? log_add(LOG_TO_DEVICE, FUNCTION_cuMemcpyHtoD_v2, NULL, words, 3, size) : NULL;
    if (entry != NULL) memcpy(log_bytes(entry), between, size);
    free(between);
    return done;
}

static placed *place_of(word of, const char *name) {
    for (placed *p = places; p != NULL; p = p->next)
        if (p->of == of && strcmp(p->name, name) == 0) return p;
    return NULL;
}

static placed *new_place(word of, const char *name, word from, uint64_t size) {
    const uint64_t at = (room_used + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
    if (size > UNIT - at || !have_room() || !copy_content(room + at, from, size)) return NULL;
    placed *const made_place = malloc(sizeof *made_place);
    char *const own = strdup(name);
    if (made_place == NULL || own == NULL) {
        free(made_place);
        free(own);
        return NULL;
    }
    *made_place = (placed){of, room + at, size, own, places};
    room_used = at + size;
    places = made_place;
    return made_place;
}

bool variables_place(word library, const char *name, word *address, word *size) {
    pthread_mutex_lock(&asking);
    const placed *const p = place_of(library, name);
    if (p != NULL) {
        *address = p->at;
        *size = p->size;
    }
    pthread_mutex_unlock(&asking);
    return p != NULL;
}

void variables_forget(word library) {
    pthread_mutex_lock(&asking);
    for (placed *p = places; p != NULL; p = p->next)
        if (p->of == library) p->of = 0;
    pthread_mutex_unlock(&asking);
}

static bool has_no_kernels(const driver_copy *copy, word native) {
    unsigned count = 1;
    return CALL(copy, cuLibraryGetKernelCount, WORD(&count), native) == MG_SUCCESS && count == 0;
}

// What the program was told before, or is told now.
static void tell(object *of, const driver_copy *copy, const char *name, word *address) {
    unsigned none = 0;
    atomic_compare_exchange_strong(&of->asked_in, &none, copy->number + 1);
    pthread_mutex_lock(&lock);
    const module *const m = find(of->kind == OBJECT_MODULE_OF_LIBRARY ? of->parent->key : of->key);
    for (variable *v = m != NULL ? m->variables : NULL; v != NULL; v = v->next) {
        if (strcmp(v->name, name) != 0) continue;
        if (v->told == NOWHERE) v->told = *address;
        else *address = v->told;
    }
    pthread_mutex_unlock(&lock);
}

static void note_question(word of, const char *name) {
    reasons_hold_for(REASON_device_variables, name);
    asked *const made_question = malloc(sizeof *made_question);
    char *const own = strdup(name);
    if (made_question == NULL || own == NULL) {  // then it is held for good
        free(made_question);
        free(own);
        return;
    }
    pthread_mutex_lock(&asking);
    *made_question = (asked){of, own, questions};
    questions = made_question;
    pthread_mutex_unlock(&asking);
}

mg_result variables_ask(const driver_copy *copy, function_id id, const word *a, word native) {
    const char *const name = POINTER(a[3]);
    word address = 0, size = 0;
    const mg_result result = copies_call(copy, id, (const word[]){WORD(&address), WORD(&size), native, a[3]}, 4);
    if (result != MG_SUCCESS) return result;
    object *const of = objects_find(a[2]);
    if (of != NULL) tell(of, copy, name, &address);
    if (id == FUNCTION_cuLibraryGetGlobal && has_no_kernels(copy, native)) {
        pthread_mutex_lock(&asking);
        const placed *p = place_of(a[2], name);
        if (p == NULL) p = new_place(a[2], name, address, size);
        pthread_mutex_unlock(&asking);
        if (p != NULL) address = p->at;
        else note_question(a[2], name);
    } else {
        note_question(a[2], name);
    }
    if (a[0] != 0) *(word *)POINTER(a[0]) = address;
    if (a[1] != 0) *(word *)POINTER(a[1]) = size;
    return MG_SUCCESS;
}
