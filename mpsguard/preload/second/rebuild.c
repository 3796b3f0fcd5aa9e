#define _GNU_SOURCE
#include "second/rebuild.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "second/ahead.h"
#include "second/beside.h"
#include "second/images.h"
#include "second/limits.h"
#include "second/objects.h"
#include "second/reasons.h"
#include "second/takeover_state.h"
#include "second/variables.h"

#define BUCKETS 4096
// Handles are pointers; what is less stands for a default stream, or for none.
#define LEAST_HANDLE 4096
#define OWN_KEYS ((uint64_t)1 << 32)

// At one time one object is made, and what it is made of.
static pthread_mutex_t making = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static list aside;  // instances that were made ahead, and are not what the program has

// Of a handle to the key of its object. It is said again by the object whether it is still so.
typedef struct back {
    _Atomic(word) native;  // 0: forgotten
    _Atomic(word) key;
    struct back *next;
} back;
static _Atomic(back *) backs[BUCKETS];

static size_t bucket_of(word handle) { return (handle * UINT64_C(0x9E3779B97F4A7C15)) >> 52; }

// Under `making`. In place of one that was forgotten: programs make and destroy all the time.
static void remember(word native, word key) {
    back *const first = atomic_load_explicit(&backs[bucket_of(native)], memory_order_relaxed);
    for (back *b = first; b != NULL; b = b->next) {
        if (atomic_load_explicit(&b->native, memory_order_relaxed) != 0) continue;
        atomic_store_explicit(&b->key, key, memory_order_relaxed);
        atomic_store_explicit(&b->native, native, memory_order_release);
        return;
    }
    back *const made = malloc(sizeof *made);
    if (made == NULL) {
        reasons_hold(REASON_no_memory);
        return;
    }
    *made = (back){native, key, first};
    atomic_store_explicit(&backs[bucket_of(native)], made, memory_order_release);
}

static bool is_called(word key, word native) {
    const object *const o = objects_find(key);
    return o != NULL && atomic_load_explicit(&o->at[copies_at_work()->number], memory_order_acquire) == native;
}

word rebuild_key_of(word native) {
    if (native == copies_at_work()->context && native != 0) return takeover_context();
    for (const back *b = atomic_load_explicit(&backs[bucket_of(native)], memory_order_acquire); b != NULL; b = b->next) {
        const word key = atomic_load_explicit(&b->key, memory_order_relaxed);
        if (atomic_load_explicit(&b->native, memory_order_acquire) == native && is_called(key, native)) return key;
    }
    return native;
}

// Of an address that is no other's, for as long as the process lives: drivers do not know each other's handles.
static word own_key(void) {
    static _Atomic(word) next;
    word room = atomic_load(&next);
    if (room == 0) {
        void *const made = mmap(NULL, OWN_KEYS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) return 0;
        if (!atomic_compare_exchange_strong(&next, &room, WORD(made))) munmap(made, OWN_KEYS);
    }
    return atomic_fetch_add(&next, sizeof(word));
}

word rebuild_new_key(word native) {
    const word known = rebuild_key_of(native);
    const object *const other = known == native ? objects_find(native) : NULL;
    if (other == NULL || atomic_load_explicit(&other->at[copies_at_work()->number], memory_order_acquire) == native) return known;
    const word made = own_key();
    if (made == 0) {
        reasons_hold(REASON_no_memory);
        return native;
    }
    pthread_mutex_lock(&making);
    remember(native, made);
    pthread_mutex_unlock(&making);
    return made;
}

void rebuild_forget(word native) {
    for (back *b = atomic_load_explicit(&backs[bucket_of(native)], memory_order_acquire); b != NULL; b = b->next) {
        word same = native;
        atomic_compare_exchange_strong(&b->native, &same, 0);
    }
}

static word translate(object *o);

static bool set_up(object *o, word made) {
    // Cleared first: what is set while this runs is set again. It is of the copy that is made ready at the lane.
    if (copies_at_work() != copies_at_hand() && copies_at_work()->place == PLACE_LANE) atomic_store_explicit(&o->changed, false, memory_order_release);
    const bool kernel = o->kind == OBJECT_KERNEL_OF_LIBRARY;
    const word device = copies_at_work()->device;
    word attributes[OBJECT_ATTRIBUTES], values[OBJECT_ATTRIBUTES];
    const int count = objects_attributes(o, attributes, values);
    for (int i = 0; i < count; ++i) {
        const mg_result set = kernel ? CALL(copies_at_work(), cuKernelSetAttribute, attributes[i], values[i], made, device)
                                     : CALL(copies_at_work(), cuFuncSetAttribute, made, attributes[i], values[i]);
        if (set != MG_SUCCESS) return false;
    }
    const word cache = atomic_load_explicit(&o->cache, memory_order_acquire);
    if (cache == 0) return true;
    return (kernel ? CALL(copies_at_work(), cuKernelSetCacheConfig, made, cache - 1, device)
                   : CALL(copies_at_work(), cuFuncSetCacheConfig, made, cache - 1)) == MG_SUCCESS;
}

static mg_result make(const object *o, word *made) {
    const word parent = o->parent != NULL ? translate(o->parent) : 0;
    if (parent == 0 && o->kind >= OBJECT_MODULE_OF_LIBRARY && o->make == NULL) return MG_INVALID_VALUE;
    switch (o->kind) {
        case OBJECT_STREAM:
            return CALL(copies_at_work(), cuStreamCreateWithPriority, WORD(made), o->flags, (word)(int64_t)o->priority);
        case OBJECT_EVENT: return CALL(copies_at_work(), cuEventCreate, WORD(made), o->flags);
        case OBJECT_MODULE: return images_load_module(copies_at_work(), o->code, made);
        case OBJECT_LIBRARY: return images_load_library(copies_at_work(), o->code, made);
        case OBJECT_MODULE_OF_LIBRARY: return CALL(copies_at_work(), cuLibraryGetModule, WORD(made), parent);
        case OBJECT_FUNCTION_OF_MODULE: return CALL(copies_at_work(), cuModuleGetFunction, WORD(made), parent, WORD(o->name));
        case OBJECT_KERNEL_OF_LIBRARY: return CALL(copies_at_work(), cuLibraryGetKernel, WORD(made), parent, WORD(o->name));
        case OBJECT_FUNCTION_OF_KERNEL: return CALL(copies_at_work(), cuKernelGetFunction, WORD(made), parent);
        case OBJECT_GRAPH:
        case OBJECT_INSTANCE: return o->make(o, made);
    }
    return MG_INVALID_VALUE;
}

// A module's variables, before any kernel of it can run.
static bool fill_variables(const object *o, word made) {
    word module = made;
    if (o->kind != OBJECT_MODULE && o->kind != OBJECT_LIBRARY) return true;
    if (o->kind == OBJECT_LIBRARY && CALL(copies_at_work(), cuLibraryGetModule, WORD(&module), made) != MG_SUCCESS)
        return false;
    return variables_module_made(o->key, module, atomic_load_explicit(&copies_at_work()->is_filled, memory_order_acquire));
}

// Under `making`.
static word translate(object *o) {
    word known = atomic_load_explicit(&o->at[copies_at_work()->number], memory_order_acquire);
    if (known != 0) return known;
    if (make(o, &known) != MG_SUCCESS || !set_up(o, known) || !fill_variables(o, known)) {
        // At hand, the program gets the error, and may try again.
        if (copies_at_work() != copies_at_hand()) reasons_hold(REASON_second_failed);
        return 0;
    }
    // Nothing that the copy outside of MPS makes comes to the program.
    if (copies_at_work()->place == PLACE_LANE) remember(known, o->key);
    atomic_store_explicit(&o->at[copies_at_work()->number], known, memory_order_release);
    return known;
}

word rebuild_translate_object(object *o) {
    const word known = atomic_load_explicit(&o->at[copies_at_work()->number], memory_order_acquire);
    if (known != 0) return known;
    pthread_mutex_lock(&making);
    const word made = translate(o);
    pthread_mutex_unlock(&making);
    return made;
}

word rebuild_translate(word handle) {
    if (handle < LEAST_HANDLE || copies_at_work()->number == 0) return handle;
    if (handle == takeover_context()) return copies_at_work()->context;
    object *const o = objects_find(handle);
    return o != NULL ? rebuild_translate_object(o) : handle;
}

void rebuild_found(word parent, const char *name) {
    const object *const of = objects_find(parent);
    for (object *o = objects_newest(); of != NULL && o != NULL; o = o->older) {
        if (o->parent != of || o->gone || (name == NULL) != (o->name == NULL)) continue;
        if (name == NULL || strcmp(name, o->name) == 0) rebuild_translate_object(o);
    }
}

mg_result rebuild_error(void) {
    const mg_result now = CALL(copies_at_work(), cuStreamQuery, WORD(MG_STREAM_LEGACY));
    return copies_is_loss(now) ? now : MG_INVALID_HANDLE;
}

static void end_made(object_kind kind, word second) {
    switch (kind) {
        case OBJECT_STREAM: CALL(copies_at_work(), cuStreamDestroy_v2, second); break;
        case OBJECT_EVENT: CALL(copies_at_work(), cuEventDestroy_v2, second); break;
        case OBJECT_MODULE: CALL(copies_at_work(), cuModuleUnload, second); break;
        case OBJECT_LIBRARY: CALL(copies_at_work(), cuLibraryUnload, second); break;
        case OBJECT_INSTANCE: CALL(copies_at_work(), cuGraphExecDestroy, second); break;
        default: break;
    }
}

// In the copy at the lane, if there is one.
static word lane_handle(const object *o) {
    const unsigned number = beside_number();
    return number != 0 ? atomic_load_explicit(&o->at[number], memory_order_acquire) : 0;
}

// What was made is no object's any more. Until here the object was not used for another one.
static void take_out(object *o) {
    rebuild_forget(lane_handle(o));
    free(o->uses.items);
    o->uses = (list){0};
    atomic_store_explicit(&o->at[beside_number()], 0, memory_order_release);
}

static void end_ahead(object *o) {
    end_made(o->kind, lane_handle(o));
    take_out(o);
}

// Whether one that was made ahead is not what the program has.
static bool is_unused(const object *o) { return o->gone || (o->kind == OBJECT_INSTANCE && !ahead_stands(&o->uses)); }

static void end_if_unused(object *o) {
    if (lane_handle(o) != 0 && is_unused(o)) end_ahead(o);
}

bool rebuild_end_unused(void) {
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        if (takeover_has_to_wait()) return false;
        end_if_unused(o);
    }
    return true;
}

// The driver captures no copy of memory that is not there yet, and could take its address for one of the host's.
static bool needs_memory(const object *o) { return o->kind == OBJECT_GRAPH || o->kind == OBJECT_INSTANCE; }

// The first launch of a kernel loads it, if nothing has done so before, and the driver's calls for that wait until a lane that has
// just died is cleared: 0.4 to 2.1 s in one launch (H200, 580.159.04). One that cannot be had is the launch's affair.
static void make_and_load(object *o) {
    word function = rebuild_translate_object(o);
    if (function == 0 || o->kind < OBJECT_FUNCTION_OF_MODULE || o->kind > OBJECT_FUNCTION_OF_KERNEL) return;
    if (o->kind == OBJECT_KERNEL_OF_LIBRARY && CALL(copies_at_work(), cuKernelGetFunction, WORD(&function), function) != MG_SUCCESS) return;
    CALL(copies_at_work(), cuFuncLoad, function);
}

// No lock is held meanwhile that a call of the program could wait for, but that of a takeover. So the program may destroy the object, and
// be given its handle for another one. Whether the driver was asked for it.
static bool make_of_short_life(object *o) {
    object now;
    list uses = {0};
    word made = 0;
    if (!objects_make_begin(o, &now)) return false;
    // Limits that the program set before it made the instance were noted before that.
    const bool instance = now.kind == OBJECT_INSTANCE, there = !instance || (limits_set_ahead() && now.find_uses(&now, &uses));
    if (there) {
        if (make(&now, &made) != MG_SUCCESS) made = 0;
        const bool same = objects_make_end(o, &now, made, &uses);
        if (!same && made != 0) end_made(now.kind, made);
        // An instance that fails is made when it is used.
        if (same && made == 0 && !instance) reasons_hold(REASON_second_failed);
        if (same && made != 0) {
            pthread_mutex_lock(&making);
            remember(made, now.key);
            pthread_mutex_unlock(&making);
        }
    }
    free(uses.items);
    return there;
}

static void set_up_again(object *o) {
    // Else it is left to the takeover.
    if (!set_up(o, lane_handle(o))) atomic_store_explicit(&o->changed, true, memory_order_release);
}

static bool is_to_be_made(object *o) {
    if (o->gone || o->kind == OBJECT_GRAPH) return false;
    if (o->kind == OBJECT_INSTANCE && o->not_ahead) return false;
    return lane_handle(o) == 0 || atomic_load_explicit(&o->changed, memory_order_acquire);
}

static void make_ahead(object *o) {
    if (o->kind == OBJECT_STREAM || o->kind == OBJECT_EVENT) make_of_short_life(o);
    else if (lane_handle(o) == 0) make_and_load(o);
    else set_up_again(o);
}

static bool instances_made_ahead(int most) {
    reason why;
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        if (o->kind != OBJECT_INSTANCE || !is_to_be_made(o)) continue;
        if (takeover_has_to_wait() || reasons_any(&why) || most == 0) return false;
        if (make_of_short_life(o)) --most;
    }
    return true;
}

bool rebuild_ahead(int most) {
    reason why;
    bool instances = false;
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        if (takeover_has_to_wait()) return false;
        end_if_unused(o);
        if (!is_to_be_made(o)) continue;
        // Behind the kernels that they launch.
        if (o->kind == OBJECT_INSTANCE) instances = true;
        else if (reasons_any(&why)) return false;
        else make_ahead(o);
    }
    return !instances || instances_made_ahead(most);
}

// What a driver frees may wait as well, until the lane that has died is cleared.
static void put_aside(object *o) {
    word *const kept = list_insert(&aside, sizeof *kept, aside.count);
    if (kept != NULL) *kept = lane_handle(o);
    take_out(o);
}

bool rebuild_at_takeover(void) {
    bool right = true;
    atomic_store_explicit(&copies_at_work()->is_filled, true, memory_order_release);
    // They are of the copy at hand.
    if (copies_at_work()->place == PLACE_LANE) aside.count = 0;
    for (object *o = objects_newest(); right && o != NULL; o = o->older) {
        if (copies_at_work()->place == PLACE_LANE && o->kind == OBJECT_INSTANCE && lane_handle(o) != 0 && is_unused(o)) put_aside(o);
        const word second = atomic_load_explicit(&o->at[copies_at_work()->number], memory_order_acquire);
        if (o->gone) continue;
        if (second == 0) right = (o->kind != OBJECT_STREAM && o->kind != OBJECT_EVENT) || rebuild_translate_object(o) != 0;
        else if (atomic_load_explicit(&o->changed, memory_order_acquire)) right = set_up(o, second);
    }
    return right;
}

static bool is_instance(const object *o) { return o->kind == OBJECT_INSTANCE && lane_handle(o) != 0; }

bool rebuild_has_instances(void) {
    for (const object *o = objects_newest(); o != NULL; o = o->older)
        if (is_instance(o)) return true;
    return false;
}

bool rebuild_end_instances(bool all) {
    for (; aside.count > 0; --aside.count) {
        if (takeover_has_to_wait()) return false;
        end_made(OBJECT_INSTANCE, ITEMS(word, aside)[aside.count - 1]);
    }
    for (object *o = objects_newest(); all && o != NULL; o = o->older) {
        if (!is_instance(o)) continue;
        if (takeover_has_to_wait()) return false;
        end_ahead(o);
    }
    return true;
}

void rebuild_go_on(void) {
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        free(o->uses.items);
        o->uses = (list){0};
        o->not_ahead = false;
    }
}

bool rebuild_has_unused(bool all) { return aside.count > 0 || (all && rebuild_has_instances()); }

void rebuild_give_up_instances(void) {
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        if (o->kind != OBJECT_INSTANCE) continue;
        o->not_ahead = true;
        if (lane_handle(o) != 0) end_ahead(o);
    }
}

bool rebuild_graphs(void) {
    bool right = true;
    for (object *o = objects_newest(); right && o != NULL; o = o->older)
        if (!o->gone && needs_memory(o)) right = rebuild_translate_object(o) != 0;
    return right;
}

void rebuild_give_up(void) {
    pthread_mutex_lock(&making);
    for (object *o = objects_newest(); o != NULL; o = o->older) {
        if (lane_handle(o) != 0) take_out(o);
        o->not_ahead = false;
    }
    aside.count = 0;
    pthread_mutex_unlock(&making);
}
