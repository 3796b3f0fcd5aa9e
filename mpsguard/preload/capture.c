#include "capture.h"

static void forget(process *p, size_t index) {
    p->capturing[index] = p->capturing[--p->capturing_count];
    atomic_fetch_sub_explicit(&p->captures, 1, memory_order_acq_rel);
}

void capture_begin(process *p, mg_stream stream, mg_context context) {
    pthread_mutex_lock(&p->lock);
    // With more than that at once, the rest is never seen to end, and everything stays plain.
    if (p->capturing_count < PROCESS_CAPTURES)
        p->capturing[p->capturing_count++] = (capture_entry){.stream = stream, .context = context};
    atomic_fetch_add_explicit(&p->captures, 1, memory_order_acq_rel);
    pthread_mutex_unlock(&p->lock);
}

void capture_end(process *p, mg_stream stream) {
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->capturing_count; ++i) {
        if (p->capturing[i].stream != stream) continue;
        forget(p, i);
        break;
    }
    pthread_mutex_unlock(&p->lock);
}

void capture_end_all(process *p, mg_context context) {
    pthread_mutex_lock(&p->lock);
    for (size_t i = p->capturing_count; i-- > 0;)
        if (context == NULL || p->capturing[i].context == context) forget(p, i);
    pthread_mutex_unlock(&p->lock);
}
