#include "second/memory_pools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "second/graphs.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/roles.h"
#include "second/work.h"

// What of a pool is set: which memory it may use again (int each), and how much it keeps (64 bits). Others set marks back.
enum { FIRST_SETTING = 1, THRESHOLD = 4, SETTINGS };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { bool made; uint64_t value; } settings[SETTINGS];

// Of each copy, by its number: the program has the handle of any that was at hand. 0: not asked for.
static _Atomic(word) defaults[COPIES];

// Of the program's device, which a driver knows after a fault as well; after a move it may not say it any more.
static word default_pool(const driver_copy *copy) {
    word pool = atomic_load(&defaults[copy->number]);
    if (pool != 0 || CALL(copy, cuDeviceGetDefaultMemPool, WORD(&pool), copy->device) != MG_SUCCESS) return pool;
    // Before that, the program's device is not known.
    if (copy->context != 0) atomic_store(&defaults[copy->number], pool);
    return pool;
}

static bool is_default(word pool) {
    bool found = pool != 0 && pool == default_pool(copies_at_hand());
    for (unsigned i = 0; !found && pool != 0 && i < COPIES; ++i) found = pool == atomic_load(&defaults[i]);
    return found;
}

static void note_setting(word attribute, const void *value) {
    if (attribute < FIRST_SETTING || attribute > THRESHOLD) return;
    pthread_mutex_lock(&lock);
    settings[attribute].made = true;
    memcpy(&settings[attribute].value, value, attribute == THRESHOLD ? sizeof(uint64_t) : sizeof(int));
    pthread_mutex_unlock(&lock);
}

mg_result memory_pools_call(const driver_copy *copy, function_id id, const word *a) {
    word words[MOST_PARAMETERS];
    const size_t count = functions[id].count, stream = facts[id].stream;
    // The pool is the first word, or the third of four.
    const size_t pool = stream == NO_STREAM ? 0 : 2;
    const bool default_named = (stream == NO_STREAM || count == 4) && is_default(a[pool]);
    recipe *const captured = stream != NO_STREAM ? graphs_capture_of(work_stream_of(a[stream], facts[id].per_thread)) : NULL;
    memcpy(words, a, count * sizeof *words);
    if (stream != NO_STREAM && a[stream] != 0 && (words[stream] = rebuild_translate(a[stream])) == 0) return rebuild_error();
    if (default_named) words[pool] = default_pool(copy);
    const mg_result result = copies_call(copy, id, words, count);
    if (result != MG_SUCCESS) return result;
    // Then it is a node of the graph, and memory when that is launched.
    if (captured != NULL) graphs_note_lack(captured, copies_name(id));
    else if (stream != NO_STREAM || !default_named) reasons_hold_for(REASON_memory_pools, copies_name(id));
    else if (id == FUNCTION_cuMemPoolSetAttribute) note_setting((unsigned)a[1], POINTER(a[2]));
    return result;
}

bool memory_pools_move(void) {
    driver_copy *const copy = copies_at_work();
    bool right = true;
    default_pool(copies_at_hand());
    for (word i = FIRST_SETTING; right && i <= THRESHOLD; ++i) {
        if (!settings[i].made) continue;
        const word pool = default_pool(copy);
        right = pool != 0 && CALL(copy, cuMemPoolSetAttribute, pool, i, WORD(&settings[i].value)) == MG_SUCCESS;
    }
    return right;
}
