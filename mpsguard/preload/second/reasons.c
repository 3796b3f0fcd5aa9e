#define _GNU_SOURCE
#include "second/reasons.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic int64_t held[REASON_COUNT];

#define DETAIL 96
static char details[REASON_COUNT][DETAIL];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const names[REASON_COUNT] = {
#define REASON_NAME(name) #name,
    REASONS(REASON_NAME)
#undef REASON_NAME
};

void reasons_hold(reason which) { atomic_fetch_add_explicit(&held[which], 1, memory_order_acq_rel); }
void reasons_let_go(reason which) { atomic_fetch_sub_explicit(&held[which], 1, memory_order_acq_rel); }
int64_t reasons_count(reason which) { return atomic_load_explicit(&held[which], memory_order_acquire); }
void reasons_let_go_to(reason which, int64_t count) {
    for (int64_t more = reasons_count(which) - count; more > 0; --more) reasons_let_go(which);
}
bool reasons_has(reason which) { return atomic_load_explicit(&held[which], memory_order_acquire) > 0; }
const char *reasons_name(reason which) { return names[which]; }

void reasons_hold_for(reason which, const char *detail) {
    pthread_mutex_lock(&lock);
    size_t i = 0;
    for (; detail[i] != '\0' && i < DETAIL - 1; ++i)
        details[which][i] = detail[i] < ' ' || detail[i] > '~' || detail[i] == '"' || detail[i] == '\\' ? '?' : detail[i];
    details[which][i] = '\0';
    pthread_mutex_unlock(&lock);
    reasons_hold(which);
}

void reasons_detail(reason which, char *out, unsigned long size) {
    pthread_mutex_lock(&lock);
    const size_t length = strnlen(details[which], size - 1);
    memcpy(out, details[which], length);
    out[length] = '\0';
    pthread_mutex_unlock(&lock);
}

bool reasons_any(reason *which) {
    for (int i = 0; i < REASON_COUNT; ++i) {
        if (!reasons_has((reason)i)) continue;
        *which = (reason)i;
        return true;
    }
    return false;
}
