#define _GNU_SOURCE
#include "second/claim.h"

#include <pthread.h>
#include <stddef.h>

#include "process.h"
#include "zone_table.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static claim_phase said = CLAIM_NONE;
static const char *said_reason;  // one of the fixed names, so that the address tells
static bool said_hot;
static claim_outcome repetition = CLAIM_NOT_REPEATED;

// Under the lock. False while another thread has yet to open the table: then it is said again.
static bool write_down(process *p) {
    return zone_table_claim(&p->table, (uint8_t)said, said_hot ? 2 : 1, (uint16_t)repetition, said_reason != NULL ? said_reason : "");
}

void claim_say(claim_phase phase, bool hot, const char *reason) {
    process *const p = process_get();
    if (p == NULL) return;
    pthread_mutex_lock(&lock);
    if (phase > said || (phase == said && reason != said_reason)) {
        const claim_phase before = said;
        said = phase;
        said_hot = hot;
        said_reason = reason;
        if (!write_down(p)) said = before;
    }
    pthread_mutex_unlock(&lock);
}

void claim_repetition(claim_outcome outcome) {
    process *const p = process_get();
    if (p == NULL) return;
    pthread_mutex_lock(&lock);
    repetition = outcome;
    write_down(p);
    pthread_mutex_unlock(&lock);
}
