#include "second/memory_pools.h"

#include <pthread.h>
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

// That of the first driver, once there is another: after a move the first one may not say it any more.
static word default_of_first;

static word default_pool(const driver_copy *copy, word device) {
    word pool = 0;
    return CALL(copy, cuDeviceGetDefaultMemPool, WORD(&pool), device) == MG_SUCCESS ? pool : 0;
}

// Of the device that is current, which the first driver knows after a fault as well.
static bool is_default(word pool) {
    int device = 0;
    if (pool != 0 && pool == default_of_first) return true;
    return pool != 0 && CALL(&first_copy, cuCtxGetDevice, WORD(&device)) == MG_SUCCESS && pool == default_pool(&first_copy, (word)device);
}

static void note_setting(word attribute, const void *value) {
    if (attribute < FIRST_SETTING || attribute > THRESHOLD) return;
    pthread_mutex_lock(&lock);
    settings[attribute].made = true;
    memcpy(&settings[attribute].value, value, attribute == THRESHOLD ? sizeof(uint64_t) : sizeof(int));
    pthread_mutex_unlock(&lock);
}

static mg_result in_second(const driver_copy *copy, function_id id, const word *a) {
    word words[MOST_PARAMETERS];
    const size_t count = functions[id].count, stream = facts[id].stream;
    memcpy(words, a, count * sizeof *words);
    if (stream != NO_STREAM && words[stream] != 0 && (words[stream] = rebuild_translate(words[stream])) == 0) return rebuild_error();
    // The pool is the first word, or the third of four.
    const size_t pool = stream == NO_STREAM ? 0 : 2;
    if ((stream == NO_STREAM || count == 4) && is_default(a[pool])) words[pool] = default_pool(copy, copies_device());
    return copies_call(copy, id, words, count);
}

mg_result memory_pools_call(const driver_copy *copy, function_id id, const word *a) {
    if (copy != &first_copy) return in_second(copy, id, a);
    const size_t stream = facts[id].stream;
    recipe *const captured = stream != NO_STREAM ? graphs_capture_of(work_stream_of(a[stream], facts[id].per_thread)) : NULL;
    const mg_result result = copies_call(copy, id, a, functions[id].count);
    if (result != MG_SUCCESS) return result;
    // Then it is a node of the graph, and memory when that is launched.
    if (captured != NULL) graphs_note_lack(captured, copies_name(id));
    else if (stream != NO_STREAM || !is_default(a[0])) reasons_hold_for(REASON_memory_pools, copies_name(id));
    else if (id == FUNCTION_cuMemPoolSetAttribute) note_setting((unsigned)a[1], POINTER(a[2]));
    return result;
}

bool memory_pools_move(void) {
    bool right = true;
    if (copies_place() == PLACE_LANE) default_of_first = default_pool(&first_copy, copies_device());
    for (word i = FIRST_SETTING; right && i <= THRESHOLD; ++i) {
        if (!settings[i].made) continue;
        const word pool = default_pool(copies_second(), copies_device());
        right = pool != 0 && CALL(copies_second(), cuMemPoolSetAttribute, pool, i, WORD(&settings[i].value)) == MG_SUCCESS;
    }
    return right;
}
