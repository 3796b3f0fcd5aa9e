// Which streams have work of which nothing has said yet that it is over.
//
// The program's own waits say it, so nothing is asked of the driver: each stream counts what was enqueued, and how much of that
// a wait has shown to be over. A wait for a stream or an event shows what had been enqueued before it; one for the context
// shows that of all streams.
#pragma once

#include "second/copies.h"

typedef struct work_stream work_stream;

// A stream by its handle: NULL and 1 are the default one, 2 is the thread's own (`per_thread`: NULL is, too).
// NULL if there is no host memory for it.
work_stream *work_stream_of(word handle, bool per_thread);

// The stream of that handle is gone; its work may go on, and the next one with that handle is another one.
void work_stream_ended(word handle);

// Around a call of a copy that enqueues work. False if no such call may begin now: a takeover is under way, or another copy is at hand.
bool work_begin(const driver_copy *copy, work_stream *stream);
void work_end(work_stream *stream);

// Between the two: it has enqueued work.
void work_count(work_stream *stream);

// The driver's name for it in the thread that asked for it.
word work_handle(const work_stream *stream);

// Around a call that changes what a takeover carries over: objects, memory. False likewise.
bool work_begin_change(const driver_copy *copy);
void work_end_change(void);

// From now on no such call begins; or they may again. A call may succeed after another thread has met the fault.
void work_close(void);
void work_open(void);

// What has been enqueued so far, and that all that is over.
uint64_t work_enqueued(const work_stream *stream);
void work_is_over(work_stream *stream, uint64_t enqueued);

// Whether it is known to be over.
bool work_was_over(const work_stream *stream, uint64_t enqueued);

// The same for all streams: `all_enqueued` is called before waiting for the context.
typedef struct {
    size_t count;
    uint64_t *enqueued;
} work_mark;
work_mark work_mark_all(void);
void work_mark_is_over(work_mark *mark);
void work_mark_free(work_mark *mark);

// Captures that are under way, or just begin: what asks a stream, or copies in none, may break one.
void work_capture_begins(void);
void work_capture_ends(void);
bool work_is_captured(void);

// All that has been enqueued in all streams so far, as a number that only grows.
uint64_t work_total(void);

// All that there is is over: a commit.
void work_all_over(void);

// Waits, for at most `milliseconds`, until no call that enqueues work, or changes, is under way. After work_close.
bool work_is_quiet(int milliseconds);

// Whether no stream has work, and no call that enqueues any is under way.
bool work_is_idle(void);

// The same by an event in the default stream, which waits for that of each thread: also for those of other threads, which `work_drain`
// cannot ask. What else there is, is left.
void work_drain_threads(int milliseconds);

// Waits, for at most `milliseconds`, until the driver says so of each stream that has work. The context is current. False also
// if a stream has work of which this thread cannot ask.
bool work_drain(int milliseconds);
