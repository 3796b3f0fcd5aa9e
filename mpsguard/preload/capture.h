// Stream captures under way. While there is one, nothing is placed and nothing is waited for: both could break it.
//
// A capture ends with cuStreamEndCapture, or with its stream or context: one that was forgotten must not put frees off
// for ever.
#pragma once

#include "process.h"

void capture_begin(process *p, mg_stream stream, mg_context context);

// One capture of that stream is over.
void capture_end(process *p, mg_stream stream);

// All captures of that context are over; NULL: of every context.
void capture_end_all(process *p, mg_context context);
