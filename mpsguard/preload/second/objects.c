#define _GNU_SOURCE
#include "second/objects.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "second/reasons.h"

#define BUCKETS 4096

static _Atomic(object *) buckets[BUCKETS];
static _Atomic(object *) newest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // for noting; finding needs none
static _Atomic word changes;

static size_t bucket_of(word handle) { return (handle * UINT64_C(0x9E3779B97F4A7C15)) >> 52; }

word objects_changes(void) { return atomic_load(&changes); }

object *objects_newest(void) { return atomic_load_explicit(&newest, memory_order_acquire); }

object *objects_find(word key) {
    for (object *o = atomic_load_explicit(&buckets[bucket_of(key)], memory_order_acquire); o != NULL; o = o->next)
        if (o->key == key && !atomic_load_explicit(&o->gone, memory_order_acquire)) return o;
    return NULL;
}

word objects_native(word key) {
    const unsigned number = copies_at_hand()->number;
    const object *const o = number != 0 ? objects_find(key) : NULL;
    const word native = o != NULL ? atomic_load_explicit(&o->at[number], memory_order_acquire) : 0;
    return native != 0 ? native : key;
}

static bool is_of_short_life(object_kind kind) {
    return kind == OBJECT_STREAM || kind == OBJECT_EVENT || kind == OBJECT_GRAPH || kind == OBJECT_INSTANCE;
}

// The same kernel, asked for again, is the same handle.
static bool is_same(const object *known, const object *made) {
    if (known->kind != made->kind || known->parent != made->parent || made->parent == NULL) return false;
    return known->name == made->name || (known->name != NULL && made->name != NULL && strcmp(known->name, made->name) == 0);
}

static const object *root_of(const object *o) {
    while (o->parent != NULL) o = o->parent;
    return o;
}

static const char *name_of(const object *o) { return o->name != NULL || o->parent == NULL ? o->name : o->parent->name; }

object *objects_still(object *function) {
    if (!atomic_load_explicit(&function->gone, memory_order_acquire)) return function;
    object *const now = objects_find(function->key);
    if (now == NULL || root_of(now) != root_of(function)) return NULL;
    const char *const name = name_of(now), *const before = name_of(function);
    return name != NULL && before != NULL && strcmp(name, before) == 0 ? now : NULL;
}

// Under the lock. Handles of functions are given to others as well, once their module is unloaded.
static void end(object *o) {
    atomic_store_explicit(&o->gone, true, memory_order_release);
    atomic_fetch_add(&changes, 1);
    if (is_of_short_life(o->kind) || o->kind == OBJECT_FUNCTION_OF_MODULE || o->kind == OBJECT_FUNCTION_OF_KERNEL) return;
    for (object *each = objects_newest(); each != NULL; each = each->older)
        if (each->parent == o && !atomic_load_explicit(&each->gone, memory_order_relaxed)) end(each);
}

static bool is_made_elsewhere(const object *o, unsigned number) {
    bool found = false;
    for (unsigned i = 0; !found && i < COPIES; ++i) found = i != number && atomic_load_explicit(&o->at[i], memory_order_acquire) != 0;
    return found;
}

// Programs make and destroy streams and events all the time.
static object *used_again(word key, object_kind kind, unsigned number) {
    if (!is_of_short_life(kind)) return NULL;
    for (object *o = atomic_load_explicit(&buckets[bucket_of(key)], memory_order_relaxed); o != NULL; o = o->next)
        if (o->key == key && o->kind == kind && !is_made_elsewhere(o, number)) return o;
    return NULL;
}

// Under the lock.
static object *note(const object *wanted, word native) {
    const unsigned number = copies_at_hand()->number;
    object *const known = objects_find(wanted->key);
    if (known != NULL && is_same(known, wanted)) return known;
    if (known != NULL) end(known);
    object *const old = used_again(wanted->key, wanted->kind, number);
    if (old != NULL) {
        ++old->generation;
        old->flags = wanted->flags;
        old->priority = wanted->priority;
        old->recorded_in = NULL;
        old->captured = wanted->captured;
        old->not_ahead = false;
        atomic_store_explicit(&old->at[number], native, memory_order_relaxed);
        atomic_store_explicit(&old->gone, false, memory_order_release);
        atomic_fetch_add(&changes, 1);
        return old;
    }
    object *const made = calloc(1, sizeof *made);
    char *const name = made != NULL && wanted->name != NULL ? strdup(wanted->name) : NULL;
    if (made == NULL || (wanted->name != NULL && name == NULL)) {
        free(made);
        reasons_hold(REASON_no_memory);
        return NULL;
    }
    made->key = wanted->key;
    made->kind = wanted->kind;
    made->parent = wanted->parent;
    made->flags = wanted->flags;
    made->priority = wanted->priority;
    made->name = name;
    made->code = wanted->code;
    made->captured = wanted->captured;
    made->make = wanted->make;
    made->find_uses = wanted->find_uses;
    atomic_store_explicit(&made->at[number], native, memory_order_relaxed);
    made->next = atomic_load_explicit(&buckets[bucket_of(made->key)], memory_order_relaxed);
    made->older = atomic_load_explicit(&newest, memory_order_relaxed);
    atomic_store_explicit(&buckets[bucket_of(made->key)], made, memory_order_release);
    atomic_store_explicit(&newest, made, memory_order_release);
    atomic_fetch_add(&changes, 1);
    return made;
}

object *objects_note(const object *made, word native) {
    pthread_mutex_lock(&lock);
    object *const noted = note(made, native);
    pthread_mutex_unlock(&lock);
    return noted;
}

objects_mark objects_mark_of(word key) {
    pthread_mutex_lock(&lock);
    object *const found = objects_find(key);
    const objects_mark mark = {found, found != NULL ? found->generation : 0};
    pthread_mutex_unlock(&lock);
    return mark;
}

void objects_forget(objects_mark mark) {
    if (mark.object == NULL) return;
    pthread_mutex_lock(&lock);
    if (mark.object->generation == mark.generation) end(mark.object);
    pthread_mutex_unlock(&lock);
}

bool objects_set_attribute(word key, word attribute, word value, bool *same) {
    object *const o = objects_find(key);
    if (o == NULL) return false;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < o->attribute_count && o->attributes[i].attribute != attribute) ++i;
    *same = i < o->attribute_count && o->attributes[i].value == value;
    if (i < OBJECT_ATTRIBUTES) {
        o->attributes[i].attribute = attribute;
        o->attributes[i].value = value;
        if (i == o->attribute_count) ++o->attribute_count;
        atomic_store_explicit(&o->changed, true, memory_order_release);
        atomic_fetch_add(&changes, 1);
    } else {
        reasons_hold(REASON_no_memory);
    }
    pthread_mutex_unlock(&lock);
    return true;
}

bool objects_set_cache(word key, word preference) {
    object *const o = objects_find(key);
    if (o == NULL) return false;
    atomic_store_explicit(&o->cache, preference + 1, memory_order_release);
    atomic_store_explicit(&o->changed, true, memory_order_release);
    atomic_fetch_add(&changes, 1);
    return true;
}

int objects_attributes(object *o, word attributes[OBJECT_ATTRIBUTES], word values[OBJECT_ATTRIBUTES]) {
    pthread_mutex_lock(&lock);
    const int count = o->attribute_count;
    for (int i = 0; i < count; ++i) {
        attributes[i] = o->attributes[i].attribute;
        values[i] = o->attributes[i].value;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

bool objects_make_begin(object *o, object *now) {
    pthread_mutex_lock(&lock);
    const bool wanted = !o->gone && !o->not_ahead && atomic_load_explicit(&o->at[copies_at_work()->number], memory_order_relaxed) == 0;
    if (wanted)
        *now = (object){.key = o->key, .kind = o->kind, .generation = o->generation, .flags = o->flags, .priority = o->priority,
                        .captured = o->captured, .make = o->make, .find_uses = o->find_uses};
    pthread_mutex_unlock(&lock);
    return wanted;
}

bool objects_make_end(object *o, const object *now, word made, list *uses) {
    pthread_mutex_lock(&lock);
    const bool same = !o->gone && o->generation == now->generation;
    if (same && made != 0) {
        o->uses = *uses;
        *uses = (list){0};
        atomic_store_explicit(&o->at[copies_at_work()->number], made, memory_order_release);
    } else if (same) {
        o->not_ahead = true;
    }
    pthread_mutex_unlock(&lock);
    return same;
}

objects_record objects_record_begin(word event) {
    pthread_mutex_lock(&lock);
    objects_record record = {.event = objects_find(event)};
    if (record.event != NULL) {
        record.turn = ++record.event->records_begun;
        record.alone = record.event->records_ended == record.turn - 1;
    }
    pthread_mutex_unlock(&lock);
    return record;
}

void objects_record_end(const objects_record *record, bool recorded, work_stream *stream, uint64_t behind) {
    object *const event = record->event;
    if (event == NULL) return;
    pthread_mutex_lock(&lock);
    ++event->records_ended;
    const bool known = recorded && record->alone && event->records_begun == record->turn;
    event->recorded_in = known ? stream : NULL;
    event->recorded_behind = known ? behind : 0;
    pthread_mutex_unlock(&lock);
}

objects_record objects_wait_begin(word event) {
    pthread_mutex_lock(&lock);
    objects_record record = {.event = objects_find(event)};
    const object *const o = record.event;
    if (o != NULL) {
        record.turn = o->records_begun;
        record.alone = o->records_begun == o->records_ended;
        record.stream = o->recorded_in;
        record.behind = o->recorded_behind;
    }
    pthread_mutex_unlock(&lock);
    return record;
}

bool objects_wait_end(const objects_record *record) {
    if (record->event == NULL || !record->alone) return false;
    pthread_mutex_lock(&lock);
    const bool same = record->event->records_begun == record->turn;
    pthread_mutex_unlock(&lock);
    return same;
}
