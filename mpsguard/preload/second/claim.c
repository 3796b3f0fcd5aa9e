#define _GNU_SOURCE
#include "second/claim.h"

#include <pthread.h>
#include <stddef.h>

#include "process.h"
#include "zone_table.h"

// In the table (mpsguard/preload/second_claim.py).
enum { CLAIM_COLD = 1, CLAIM_HOT = 2, CLAIM_MAKES_READY = 0x80 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    claim_phase phase;
    const char *reason;  // one of the fixed names, so that the address tells
    bool hot, makes_ready;
    claim_outcome repetition;
    uint8_t times;  // that it has gone over
} said;

// False while another thread has yet to open the table: then it is said again.
static bool write_down(process *p) {
    const uint8_t mode = (uint8_t)((said.hot ? CLAIM_HOT : CLAIM_COLD) | (said.makes_ready ? CLAIM_MAKES_READY : 0));
    const uint16_t repetition = (uint16_t)((unsigned)said.repetition | (unsigned)said.times << 8);
    return zone_table_claim(&p->table, (uint8_t)said.phase, mode, repetition, said.reason != NULL ? said.reason : "");
}

void claim_wait(bool hot, const char *reason) {
    process *const p = process_get();
    if (p == NULL) return;
    pthread_mutex_lock(&lock);
    const bool waits = said.phase != CLAIM_GOING_OVER && said.phase != CLAIM_REFUSED;
    if (waits && (said.phase == CLAIM_NONE || reason != said.reason)) {
        const __typeof__(said) before = said;
        said.phase = said.phase == CLAIM_NONE ? CLAIM_WAITING : said.phase;
        said.hot = hot;
        said.reason = reason;
        if (!write_down(p)) said = before;
    }
    pthread_mutex_unlock(&lock);
}

void claim_say(claim_phase phase, bool hot, const char *reason) {
    process *const p = process_get();
    if (p == NULL) return;
    pthread_mutex_lock(&lock);
    said.phase = phase;
    said.hot = hot;
    said.reason = reason;
    if (phase == CLAIM_GOING_OVER) said.repetition = CLAIM_NOT_REPEATED;
    if (phase == CLAIM_WENT_OVER || phase == CLAIM_MOVED) ++said.times;
    write_down(p);
    pthread_mutex_unlock(&lock);
}

void claim_makes_ready(bool does) {
    process *const p = process_get();
    if (p == NULL) return;
    pthread_mutex_lock(&lock);
    said.makes_ready = does;
    // Before it has said anything else there is nothing to add to.
    if (said.phase != CLAIM_NONE) write_down(p);
    pthread_mutex_unlock(&lock);
}

void claim_repetition(claim_outcome outcome) {
    process *const p = process_get();
    if (p == NULL) return;
    pthread_mutex_lock(&lock);
    said.repetition = outcome;
    write_down(p);
    pthread_mutex_unlock(&lock);
}
