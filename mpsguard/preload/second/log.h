// The log: all that was done to GPU memory since the last epoch (epoch.h), in an order in which it can be done again.
//
// A call is added after the driver has taken it and before it returns, so the order is one that the program allows: whatever
// it knows to come later, is later here. Work in streams waits for nothing but work that was enqueued before, so all of it can
// be repeated in this order, one after the other.
//
// Calls are added while they are counted (work_begin, work_begin_change); the log is begun and read while none is.
#pragma once

#include "second/copies.h"
#include "second/reasons.h"
#include "second/work.h"

typedef enum {
    LOG_CALL,        // as the program made it
    LOG_LAUNCH,
    LOG_TO_DEVICE,   // to, from, size; the bytes
    LOG_TO_HOST,     // to, from, size; the bytes (host_reads.h)
    LOG_MAP,         // number of a mapping (mappings.h)
    LOG_UNMAP,
    LOG_NOTHING,     // the driver has not taken it
} log_kind;

typedef struct {
    uint32_t size;   // of all of it
    uint16_t function;
    uint8_t kind;
    uint8_t count;   // of words
    bool seen;       // of LOG_TO_HOST
    const work_stream *stream;  // in which it is work, behind so much; NULL: it is none
    uint64_t behind;
    word words[];    // and the bytes behind them
} log_entry;

// All that was done before is held elsewhere: the log is empty, and on. False if there is no memory for it.
bool log_begin(void);

// What follows cannot be repeated: it is off until it is begun again, or for good.
void log_break(reason why, const char *detail);
void log_end(reason why, const char *detail);

// The program goes on in another copy of the driver, where all that it had done is done: the next epoch begins it.
void log_may_begin_again(void);

// There is no epoch for it to begin at.
void log_cannot_begin(reason why, const char *detail);

bool log_is_on(void);
bool log_has_ended(void);

// Why it is off.
reason log_why(char *detail, size_t size);

// Whether it is more than half full.
bool log_is_crowded(void);

// A new entry with room for `bytes`; NULL if the log is off, or is now because it is full. `stream`: where it was enqueued last, or NULL.
log_entry *log_add(log_kind kind, function_id function, const work_stream *stream, const word *words, size_t count, size_t bytes);

// One of its own, outside of the log; NULL if there is no memory. free() ends it.
log_entry *log_make(log_kind kind, function_id function, const word *words, size_t count, size_t bytes);

void *log_bytes(log_entry *entry);

// The entry behind one (NULL: the first); NULL at the end.
log_entry *log_next(const log_entry *entry);
