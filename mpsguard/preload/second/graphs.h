// Graphs: the calls of each stream capture are kept, so that the other copies of the driver can be given the same graph by the same
// calls. Graphs that a program makes node by node are refused (roles.toml).
#pragma once

#include "second/copies.h"
#include "second/work.h"

// The calls of a capture. Kept for good: a graph may be gone while what was instantiated of it is there.
typedef struct recipe recipe;

// Wrappers of cuStreamBeginCapture and cuStreamEndCapture in all their forms, for the copy at hand.
mg_result graphs_begin_capture(const driver_copy *copy, function_id id, const word *a, const work_stream *stream);
mg_result graphs_end_capture(const driver_copy *copy, function_id id, const word *a, const work_stream *stream);

// The stream was destroyed, and a capture that began there with it.
void graphs_stream_ended(const work_stream *stream);

// The capture in which a stream is now, or NULL.
recipe *graphs_capture_of(const work_stream *stream);

// Notes a call that the driver has taken into a capture.
void graphs_note_work(recipe *in, function_id id, const word *a, const work_stream *stream);
void graphs_note_record(recipe *in, function_id id, const word *a, const work_stream *stream);
void graphs_note_wait(recipe *in, const word *a, const work_stream *stream);

// Notes one that cannot be made again.
void graphs_note_lack(recipe *in, const char *what);

// Whether there are any, or were: what they use may not change under them.
bool graphs_are_there(void);

// Notes what was instantiated of a graph.
void graphs_note_instance(word key, word native, word graph, word flags);
