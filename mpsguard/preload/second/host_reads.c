#include "second/host_reads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "second/objects.h"
#include "second/work.h"

// More that are not seen than this: the log is broken.
#define MOST 1024

enum { TO, FROM, SIZE };

// Behind each copy an event of ours: what the program waits for may be another stream, or anything that waits by itself. Those
// past the count have events to use again.
typedef struct {
    log_entry *entry;
    word event;
    mg_result marked;  // the loss, if the fault came between the copy and its event
} unseen_copy;
static unseen_copy unseen[MOST];
static _Atomic size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// What lies at its place now, into the log.
static void keep(log_entry *entry) { memcpy(log_bytes(entry), POINTER(entry->words[TO]), entry->words[SIZE]); }

void host_reads_add_seen(log_entry *entry) {
    keep(entry);
    entry->seen = true;
}

static bool mark(unseen_copy *at, log_entry *entry, word stream) {
    at->entry = entry;
    at->marked = at->event != 0 ? MG_SUCCESS : CALL(copies_at_hand(), cuEventCreate, WORD(&at->event), MG_EVENT_DISABLE_TIMING);
    if (at->marked == MG_SUCCESS) at->marked = CALL(copies_at_hand(), cuEventRecord, at->event, objects_native(stream));
    return at->marked == MG_SUCCESS || copies_is_loss(at->marked);
}

void host_reads_add(log_entry *entry, word stream) {
    pthread_mutex_lock(&lock);
    // An event that is recorded, or asked, in a stream capture would be a part of it, or end it.
    const bool fits = count < MOST, marked = fits && !work_is_captured() && mark(&unseen[count], entry, stream);
    if (marked) ++count;
    pthread_mutex_unlock(&lock);
    if (!fits) log_break(REASON_log_full, "copies to the host");
    else if (!marked) log_break(REASON_unlogged, "copies to the host");
}

// Under the lock: the first `left` stay, and this one with them.
static void stay(size_t left, size_t i) {
    const unseen_copy stays = unseen[i];
    unseen[i] = unseen[left];
    unseen[left] = stays;
}

// The lane has faulted, and events answer nothing else. The program may have been told that the copy was over: then it is there. One
// that is there in part is not repeated to the same bytes, and so refused.
static bool is_there(log_entry *entry) {
    return memcmp(log_bytes(entry), POINTER(entry->words[TO]), entry->words[SIZE]) != 0;
}

void host_reads_look(void) {
    int mode = MG_CAPTURE_RELAXED;
    if (atomic_load_explicit(&count, memory_order_acquire) == 0 || work_is_captured()) return;
    pthread_mutex_lock(&lock);
    size_t left = 0;
    bool answered = true;
    // Another thread may begin a capture just now.
    const bool exchanged = CALL(copies_at_hand(), cuThreadExchangeStreamCaptureMode, WORD(&mode)) == MG_SUCCESS;
    for (size_t i = 0; i < count; ++i) {
        const mg_result asked = unseen[i].marked != MG_SUCCESS ? unseen[i].marked : CALL(copies_at_hand(), cuEventQuery, unseen[i].event);
        const bool lost = copies_is_loss(asked);
        if (asked == MG_SUCCESS || (lost && is_there(unseen[i].entry))) host_reads_add_seen(unseen[i].entry);
        else stay(left++, i);
        answered = answered && (asked == MG_SUCCESS || asked == MG_NOT_READY || lost);
    }
    if (exchanged) CALL(copies_at_hand(), cuThreadExchangeStreamCaptureMode, WORD(&mode));
    count = left;
    pthread_mutex_unlock(&lock);
    // The program may know more than can be known here.
    if (!answered) log_break(REASON_unlogged, "copies to the host");
}

static bool is_in(const log_entry *entry, word at, uint64_t size) {
    return entry->words[TO] < at + size && at < entry->words[TO] + entry->words[SIZE];
}

bool host_reads_overlap(word at, uint64_t size) {
    bool found = false;
    if (atomic_load_explicit(&count, memory_order_acquire) == 0) return false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < count; ++i) found = is_in(unseen[i].entry, at, size);
    pthread_mutex_unlock(&lock);
    return found;
}

void host_reads_forget(void) {
    pthread_mutex_lock(&lock);
    count = 0;
    pthread_mutex_unlock(&lock);
}

void host_reads_leave(void) {
    pthread_mutex_lock(&lock);
    memset(unseen, 0, sizeof unseen);
    count = 0;
    pthread_mutex_unlock(&lock);
}

bool host_reads_drop(word at, uint64_t size) {
    pthread_mutex_lock(&lock);
    const size_t before = count;
    size_t left = 0;
    for (size_t i = 0; i < before; ++i)
        if (!is_in(unseen[i].entry, at, size)) stay(left++, i);
    count = left;
    pthread_mutex_unlock(&lock);
    return left < before;
}

bool host_reads_repeat(log_entry *entry, const unsigned char *given) {
    unsigned char *const there = POINTER(entry->words[TO]);
    const unsigned char *const kept = log_bytes(entry);
    const uint64_t size = entry->words[SIZE];
    bool right = true;
    pthread_mutex_lock(&lock);
    if (entry->seen) {
        right = memcmp(kept, given, size) == 0;
    } else {
        for (uint64_t i = 0; right && i < size; ++i) right = there[i] == kept[i] || there[i] == given[i];
        if (right) memcpy(there, given, size);
    }
    pthread_mutex_unlock(&lock);
    return right;
}
