#include "second/limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "second/reasons.h"

#define MOST_LIMITS 8

typedef struct {
    word limit, value;
} limit;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static limit limits[MOST_LIMITS];
static int count;
static _Atomic word changes;
static word given[COPIES];  // changes that each copy has, by its number

void limits_note(word which, word value) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < count && limits[i].limit != which) ++i;
    if (i < MOST_LIMITS) {
        limits[i] = (limit){which, value};
        if (i == count) ++count;
    } else {
        reasons_hold(REASON_device_settings);
    }
    atomic_fetch_add(&changes, 1);
    pthread_mutex_unlock(&lock);
}

bool limits_set(void) {
    limit all[MOST_LIMITS];
    bool done = true;
    pthread_mutex_lock(&lock);
    const int known = count;
    const word now = atomic_load(&changes);
    memcpy(all, limits, sizeof all);
    pthread_mutex_unlock(&lock);
    for (int i = 0; done && i < known; ++i) done = CALL(copies_at_work(), cuCtxSetLimit, all[i].limit, all[i].value) == MG_SUCCESS;
    if (done) given[copies_at_work()->number] = now;
    return done;
}

bool limits_set_ahead(void) { return atomic_load(&changes) == given[copies_at_work()->number] || limits_set(); }
