#include "streams.h"

#include <stdlib.h>

// Asked for at once; what is more is asked for the next time.
#define ASKED_MOST 64
// A program that frees faster than the GPU gets on is not asked after each time.
#define ASKED_EVERY 4

stream *streams_find(process *p, uint64_t id) {
    for (stream **link = &p->streams; *link != NULL; link = &(*link)->next) {
        stream *const s = *link;
        if (s->id != id) continue;
        *link = s->next;
        s->next = p->streams;
        return p->streams = s;
    }
    return NULL;
}

static bool is_idle(const stream *s) {
    if (s->waiting > 0) return false;
    for (size_t i = 0; i < STREAM_MARKS; ++i)
        if (s->marks[i].busy) return false;
    return true;
}

stream *streams_make(process *p, uint64_t id) {
    stream *s = streams_find(p, id);
    if (s != NULL) return s;
    for (s = p->streams; s != NULL && !is_idle(s);) s = s->next;
    if (s == NULL) {
        if ((s = calloc(1, sizeof *s)) == NULL) return NULL;
        s->next = p->streams;
        p->streams = s;
        ++p->stream_count;
    }
    s->id = id;
    s->over = 0;
    for (size_t i = 0; i < STREAM_MARKS; ++i) s->marks[i].number = 0;
    return s;
}

int streams_relax(const mg_driver *d) {
    int mode = MG_CAPTURE_RELAXED;
    d->thread_exchange_stream_capture_mode(&mode);
    return mode;
}

void streams_unrelax(const mg_driver *d, int mode) { d->thread_exchange_stream_capture_mode(&mode); }

static void reach(stream *s, uint64_t number) {
    if (s->over < number) s->over = number;
}

// A mark that is not asked for.
static mark *unused_mark(stream *s) {
    for (size_t i = 0; i < STREAM_MARKS; ++i) {
        mark *const m = &s->marks[i];
        if (!m->busy && m->number <= s->over) return m;
    }
    return NULL;
}

// Of the marks that stand for something, the one with the highest number, or with the lowest.
static mark *outermost_mark(stream *s, bool newest) {
    mark *found = NULL;
    for (size_t i = 0; i < STREAM_MARKS; ++i) {
        mark *const m = &s->marks[i];
        if (m->busy) continue;
        if (found == NULL || (newest ? m->number > found->number : m->number < found->number)) found = m;
    }
    return found;
}

static bool is_over(const mg_driver *d, mg_event event) {
    const int mode = streams_relax(d);
    const bool over = d->event_query(event) == MG_SUCCESS;
    streams_unrelax(d, mode);
    return over;
}

mark *streams_take_mark(process *p, const mg_driver *d, stream *s, uint64_t number) {
    mark *m = unused_mark(s);
    const mark *const oldest = m == NULL && number % ASKED_EVERY == 0 ? outermost_mark(s, false) : NULL;
    if (oldest != NULL) {
        const mark asked = *oldest;
        pthread_mutex_unlock(&p->lock);
        const bool over = is_over(d, asked.event);
        pthread_mutex_lock(&p->lock);
        if (over) reach(s, asked.number);
        m = unused_mark(s);
    }
    // The last one's place: its frees then wait a little longer.
    if (m == NULL) m = outermost_mark(s, true);
    if (m == NULL) return NULL;
    m->busy = true;
    m->number = 0;
    return m;
}

mg_result streams_record(const mg_driver *d, mark *m, mg_stream handle, bool *recorded) {
    // Only one thread touches a busy mark.
    *recorded = m->event != NULL || d->event_create(&m->event, MG_EVENT_DISABLE_TIMING) == MG_SUCCESS;
    return *recorded ? d->event_record(m->event, handle) : MG_SUCCESS;
}

void streams_publish(mark *m, uint64_t number) {
    m->busy = false;
    m->number = number;
}

void streams_ask(process *p, const mg_driver *d, stream *only) {
    struct {
        stream *of;
        mg_event event;
        uint64_t number;
        bool over;
    } asked[ASKED_MOST];
    size_t count = 0;
    pthread_mutex_lock(&p->lock);
    for (stream *s = only != NULL ? only : p->streams; s != NULL; s = only != NULL ? NULL : s->next) {
        for (size_t i = 0; i < STREAM_MARKS && s->waiting > 0 && count < ASKED_MOST; ++i) {
            const mark *const m = &s->marks[i];
            if (m->busy || m->number <= s->over) continue;
            asked[count].of = s;
            asked[count].event = m->event;
            asked[count++].number = m->number;
        }
    }
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < count; ++i) asked[i].over = is_over(d, asked[i].event);
    pthread_mutex_lock(&p->lock);
    // A record that stands for another stream by now has no free with so low a number.
    for (size_t i = 0; i < count; ++i)
        if (asked[i].over) reach(asked[i].of, asked[i].number);
    pthread_mutex_unlock(&p->lock);
}

void streams_reach(process *p, stream *only, uint64_t number) {
    for (stream *s = only != NULL ? only : p->streams; s != NULL; s = only != NULL ? NULL : s->next) reach(s, number);
}

mg_result streams_wait(const mg_driver *d, mg_stream handle) {
    const int mode = streams_relax(d);
    const mg_result result = d->stream_synchronize(handle);
    streams_unrelax(d, mode);
    return result;
}

void streams_forget(process *p) {
    for (stream *s = p->streams; s != NULL; s = s->next) {
        s->id = 0;
        s->waiting = 0;
        for (size_t i = 0; i < STREAM_MARKS; ++i) s->marks[i] = (mark){.busy = s->marks[i].busy};
    }
}
