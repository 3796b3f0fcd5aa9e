// How far streams have come: which frees in stream order are over.
//
// Each free has a number, counted over the process. It is taken after the program enqueued whatever uses the memory, and
// before the mark behind it is enqueued: an event, recorded in the stream. So a mark that is done proves the end of all
// frees of its stream with no higher number, and so does a synchronisation that began after they were counted.
//
// A record of a stream is never given back to the C library, and its events are not destroyed but recorded again: a
// thread that has just asked for one without the lock still asks for something that is there.
#pragma once

#include "process.h"

// So many points of a stream are remembered; with more frees under way, later ones take the place of the last.
enum { STREAM_MARKS = 8 };

typedef struct {
    mg_event event;
    uint64_t number;  // 0: there is nothing to ask
    bool busy;        // being recorded
} mark;

typedef struct stream stream;
struct stream {
    uint64_t id;      // as cuStreamGetId has it: no other stream of the process ever has it
    uint64_t over;    // frees up to that number are over
    size_t waiting;   // freed in it, or being freed
    mark marks[STREAM_MARKS];
    stream *next;
};

// The record of a stream, and a new one if need be (NULL: no host memory). The caller holds the lock.
stream *streams_find(process *p, uint64_t id);
stream *streams_make(process *p, uint64_t id);

// Takes a mark for the free `number`, which the caller records with streams_record and then publishes with
// streams_publish. NULL if none is to be had: the next free's will do. The caller holds the lock, which is let go for a
// question now and then.
mark *streams_take_mark(process *p, const mg_driver *d, stream *s, uint64_t number);

// Records it in the stream with that handle, in the current context: the driver's error if it would not take one. False
// in `recorded` without an error: there was no event.
mg_result streams_record(const mg_driver *d, mark *m, mg_stream handle, bool *recorded);

// It stands for the free `number`, or for nothing (0). The caller holds the lock.
void streams_publish(mark *m, uint64_t number);

// Asks for the marks of one stream, or of all (NULL).
void streams_ask(process *p, const mg_driver *d, stream *only);

// All frees up to that number of a stream are over, or of every stream (NULL). The caller holds the lock.
void streams_reach(process *p, stream *only, uint64_t number);

// A thread that is not "relaxed" may not ask for an event, and more, while any stream is captured, be it another one: the
// capture would break (CUDA driver API reference, cuThreadExchangeStreamCaptureMode). Returns the mode for the way back.
int streams_relax(const mg_driver *d);
void streams_unrelax(const mg_driver *d, int mode);

// Waits for a stream, also while another one is being captured.
mg_result streams_wait(const mg_driver *d, mg_stream handle);

// The streams' context is gone, and their events with it. The caller holds the lock.
void streams_forget(process *p);
