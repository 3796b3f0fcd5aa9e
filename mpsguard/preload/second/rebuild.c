#define _GNU_SOURCE
#include "second/rebuild.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "second/images.h"
#include "second/objects.h"
#include "second/reasons.h"
#include "second/takeover_state.h"
#include "second/variables.h"

#define BUCKETS 4096
// Handles are pointers; what is less stands for a default stream, or for none.
#define LEAST_HANDLE 4096

// At one time one object is made, and what it is made of.
static pthread_mutex_t making = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static word context_first;
static word contexts[PLACE_COUNT];
static _Atomic bool taken_over;

typedef struct back {
    _Atomic(word) second;  // 0: forgotten
    word key;
    struct back *next;
} back;
static _Atomic(back *) backs[BUCKETS];

static size_t bucket_of(word handle) { return (handle * UINT64_C(0x9E3779B97F4A7C15)) >> 52; }

void rebuild_set_contexts(copy_place place, word first, word second) {
    context_first = first;
    contexts[place] = second;
}

static void remember(word second, word key) {
    back *const made = malloc(sizeof *made);
    if (made == NULL) {
        reasons_hold(REASON_no_memory);
        return;
    }
    *made = (back){second, key, atomic_load_explicit(&backs[bucket_of(second)], memory_order_relaxed)};
    atomic_store_explicit(&backs[bucket_of(second)], made, memory_order_release);
}

word rebuild_key_of(word second) {
    if (second == contexts[PLACE_LANE]) return context_first;
    for (const back *b = atomic_load_explicit(&backs[bucket_of(second)], memory_order_acquire); b != NULL; b = b->next)
        if (b->second == second) return b->key;
    return second;
}

void rebuild_forget(word second) {
    for (back *b = atomic_load_explicit(&backs[bucket_of(second)], memory_order_acquire); b != NULL; b = b->next) {
        word same = second;
        atomic_compare_exchange_strong(&b->second, &same, 0);
    }
}

static word translate(object *o);

static bool set_up(object *o, word made) {
    // Cleared first: what is set while this runs is set again. What is made outside of MPS is made once.
    if (copies_place() == PLACE_LANE) atomic_store_explicit(&o->changed, false, memory_order_release);
    const bool kernel = o->kind == OBJECT_KERNEL_OF_LIBRARY;
    const word device = copies_device();
    word attributes[OBJECT_ATTRIBUTES], values[OBJECT_ATTRIBUTES];
    const int count = objects_attributes(o, attributes, values);
    for (int i = 0; i < count; ++i) {
        const mg_result set = kernel ? CALL(copies_second(), cuKernelSetAttribute, attributes[i], values[i], made, device)
                                     : CALL(copies_second(), cuFuncSetAttribute, made, attributes[i], values[i]);
        if (set != MG_SUCCESS) return false;
    }
    const word cache = atomic_load_explicit(&o->cache, memory_order_acquire);
    if (cache == 0) return true;
    return (kernel ? CALL(copies_second(), cuKernelSetCacheConfig, made, cache - 1, device)
                   : CALL(copies_second(), cuFuncSetCacheConfig, made, cache - 1)) == MG_SUCCESS;
}

static mg_result make(const object *o, word *made) {
    const word parent = o->parent != NULL ? translate(o->parent) : 0;
    if (parent == 0 && o->kind >= OBJECT_MODULE_OF_LIBRARY && o->make == NULL) return MG_INVALID_VALUE;
    switch (o->kind) {
        case OBJECT_STREAM:
            return CALL(copies_second(), cuStreamCreateWithPriority, WORD(made), o->flags, (word)(int64_t)o->priority);
        case OBJECT_EVENT: return CALL(copies_second(), cuEventCreate, WORD(made), o->flags);
        case OBJECT_MODULE: return images_load_module(copies_second(), o->code, made);
        case OBJECT_LIBRARY: return images_load_library(copies_second(), o->code, made);
        case OBJECT_MODULE_OF_LIBRARY: return CALL(copies_second(), cuLibraryGetModule, WORD(made), parent);
        case OBJECT_FUNCTION_OF_MODULE: return CALL(copies_second(), cuModuleGetFunction, WORD(made), parent, WORD(o->name));
        case OBJECT_KERNEL_OF_LIBRARY: return CALL(copies_second(), cuLibraryGetKernel, WORD(made), parent, WORD(o->name));
        case OBJECT_FUNCTION_OF_KERNEL: return CALL(copies_second(), cuKernelGetFunction, WORD(made), parent);
        case OBJECT_GRAPH:
        case OBJECT_INSTANCE: return o->make(o, made);
    }
    return MG_INVALID_VALUE;
}

// A module's variables, before any kernel of it can run.
static bool fill_variables(const object *o, word made) {
    word module = made;
    if (o->kind != OBJECT_MODULE && o->kind != OBJECT_LIBRARY) return true;
    if (o->kind == OBJECT_LIBRARY && CALL(copies_second(), cuLibraryGetModule, WORD(&module), made) != MG_SUCCESS)
        return false;
    return variables_module_made(o->key, module, atomic_load_explicit(&taken_over, memory_order_acquire));
}

// Under `making`.
static word translate(object *o) {
    word known = atomic_load_explicit(&o->second[copies_place()], memory_order_acquire);
    if (known != 0) return known;
    if (make(o, &known) != MG_SUCCESS || !set_up(o, known) || !fill_variables(o, known)) {
        reasons_hold(REASON_second_failed);
        return 0;
    }
    // Nothing that the copy outside of MPS makes comes to the program.
    if (copies_place() == PLACE_LANE) remember(known, o->key);
    atomic_store_explicit(&o->second[copies_place()], known, memory_order_release);
    return known;
}

word rebuild_translate(word handle) {
    if (handle < LEAST_HANDLE) return handle;
    if (handle == context_first) return contexts[copies_place()];
    object *const o = objects_find(handle);
    if (o == NULL) return handle;
    const word known = atomic_load_explicit(&o->second[copies_place()], memory_order_acquire);
    if (known != 0) return known;
    pthread_mutex_lock(&making);
    const word made = translate(o);
    pthread_mutex_unlock(&making);
    return made;
}

mg_result rebuild_error(void) {
    const mg_result now = CALL(copies_second(), cuStreamQuery, WORD(MG_STREAM_LEGACY));
    return copies_is_loss(now) ? now : MG_INVALID_HANDLE;
}

static void end_ahead(object *o) {
    const word second = atomic_load_explicit(&o->second[copies_place()], memory_order_acquire);
    switch (o->kind) {
        case OBJECT_STREAM: CALL(copies_second(), cuStreamDestroy_v2, second); break;
        case OBJECT_EVENT: CALL(copies_second(), cuEventDestroy_v2, second); break;
        case OBJECT_MODULE: CALL(copies_second(), cuModuleUnload, second); break;
        case OBJECT_LIBRARY: CALL(copies_second(), cuLibraryUnload, second); break;
        default: break;
    }
    rebuild_forget(second);
    atomic_store_explicit(&o->second[copies_place()], 0, memory_order_release);
}

// The driver captures no copy of memory that is not there yet, and could take its address for one of the host's.
static bool needs_memory(const object *o) { return o->kind == OBJECT_GRAPH || o->kind == OBJECT_INSTANCE; }

// The first launch of a kernel loads it, if nothing has done so before, and the driver's calls for that wait until a lane that has
// just died is cleared: 0.4 to 2.1 s in one launch (H200, 580.159.04). One that cannot be had is the launch's affair.
static void make_and_load(object *o) {
    word function = rebuild_translate(o->key);
    if (function == 0 || o->kind < OBJECT_FUNCTION_OF_MODULE || o->kind > OBJECT_FUNCTION_OF_KERNEL) return;
    if (o->kind == OBJECT_KERNEL_OF_LIBRARY && CALL(copies_second(), cuKernelGetFunction, WORD(&function), function) != MG_SUCCESS) return;
    CALL(copies_second(), cuFuncLoad, function);
}

bool rebuild_ahead(void) {
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        if (takeover_has_to_wait()) return false;
        const word second = atomic_load_explicit(&o->second[copies_place()], memory_order_acquire);
        if (o->gone && second != 0) end_ahead(o);
        else if (!o->gone && second == 0 && !needs_memory(o)) make_and_load(o);
    }
    return true;
}

bool rebuild_at_takeover(void) {
    bool right = true;
    atomic_store_explicit(&taken_over, true, memory_order_release);
    for (object *o = objects_newest(); right && o != NULL; o = o->older) {
        const word second = atomic_load_explicit(&o->second[copies_place()], memory_order_acquire);
        if (o->gone) continue;
        if (second == 0) right = (o->kind != OBJECT_STREAM && o->kind != OBJECT_EVENT) || rebuild_translate(o->key) != 0;
        else if (atomic_load_explicit(&o->changed, memory_order_acquire)) right = set_up(o, second);
    }
    return right;
}

bool rebuild_graphs(void) {
    bool right = true;
    for (object *o = objects_newest(); right && o != NULL; o = o->older)
        if (!o->gone && needs_memory(o)) right = rebuild_translate(o->key) != 0;
    return right;
}

void rebuild_give_up(void) {
    atomic_store_explicit(&taken_over, false, memory_order_release);
    pthread_mutex_lock(&making);
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        const word second = atomic_exchange_explicit(&o->second[PLACE_LANE], 0, memory_order_acq_rel);
        if (second != 0) rebuild_forget(second);
    }
    pthread_mutex_unlock(&making);
}
