#include "capture.h"

static void forget(process *p, size_t index) {
    p->capturing[index] = p->capturing[--p->capturing_count];
    atomic_fetch_sub_explicit(&p->captures, 1, memory_order_acq_rel);
}

void capture_begin(process *p, mg_stream stream, mg_context context, int mode) {
    pthread_mutex_lock(&p->lock);
    // With more than that at once, the rest is never seen to end, and everything stays plain.
    if (p->capturing_count < PROCESS_CAPTURES)
        p->capturing[p->capturing_count++] = (capture_entry){stream, context, mode, &process_inside};
    atomic_fetch_add_explicit(&p->captures, 1, memory_order_acq_rel);
    pthread_mutex_unlock(&p->lock);
}

bool capture_lets_allocate(process *p, const mg_driver *d) {
    if (atomic_load_explicit(&p->captures, memory_order_acquire) == 0) return true;
    int mode = MG_CAPTURE_RELAXED, back;
    if (d->thread_exchange_stream_capture_mode == NULL || d->thread_exchange_stream_capture_mode(&mode) != MG_SUCCESS) return false;
    if (mode == MG_CAPTURE_RELAXED) return true;
    back = mode;
    d->thread_exchange_stream_capture_mode(&back);
    pthread_mutex_lock(&p->lock);
    bool lets = (int)p->capturing_count == atomic_load_explicit(&p->captures, memory_order_relaxed);
    for (size_t i = 0; lets && i < p->capturing_count; ++i) {
        const capture_entry *const c = &p->capturing[i];
        const bool own = c->thread == &process_inside;
        if (own ? c->mode != MG_CAPTURE_RELAXED : mode == MG_CAPTURE_GLOBAL && c->mode == MG_CAPTURE_GLOBAL) lets = false;
    }
    pthread_mutex_unlock(&p->lock);
    return lets;
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
