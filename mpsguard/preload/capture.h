// Stream captures under way. While there is one, nothing is waited for, which could break it, and memory is placed where the
// driver itself would let the thread allocate. That is so (measured with 580) in relaxed mode, or else without a strict
// capture of the thread's own and, in global mode, a global one elsewhere. To place memory breaks no capture.
//
// A capture ends with cuStreamEndCapture, or with its stream or context: one that was forgotten must not put frees off
// for ever.
#pragma once

#include "process.h"

void capture_begin(process *p, mg_stream stream, mg_context context, int mode);

// Whether the driver would let this thread allocate; false also in doubt: then the driver is asked, and says so itself.
bool capture_lets_allocate(process *p, const mg_driver *d);

// One capture of that stream is over.
void capture_end(process *p, mg_stream stream);

// All captures of that context are over; NULL: of every context.
void capture_end_all(process *p, mg_context context);
