#define _GNU_SOURCE
#include "zone_table.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "counters.h"

_Static_assert(sizeof(zone_slot) == 64, "a slot is 64 bytes");
_Static_assert(ZONE_TABLE_COUNTERS + 8 * COUNTER_COUNT <= ZONE_TABLE_MOVE, "the counters fit into the header");
_Static_assert(ZONE_TABLE_MOVE + sizeof(zone_move) <= ZONE_TABLE_CLAIM, "the answer fits before the claim");
_Static_assert(sizeof(zone_claim) == 40, "a claim is 40 bytes");
_Static_assert(ZONE_TABLE_CLAIM + sizeof(zone_claim) <= ZONE_TABLE_HEADER, "the claim fits into the header");

static const size_t table_bytes = ZONE_TABLE_HEADER + ZONE_TABLE_SLOTS * sizeof(zone_slot);

static zone_slot *slot_at(const zone_table *table, int32_t index) {
    return (zone_slot *)(void *)(table->base + ZONE_TABLE_HEADER) + index;
}

void zone_table_open(zone_table *table, const _Atomic uint64_t *owner) {
    const int file = memfd_create(ZONE_TABLE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) return;
    table->free = malloc(ZONE_TABLE_SLOTS * sizeof *table->free);
    if (table->free == NULL || ftruncate(file, (off_t)table_bytes) != 0 ||
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        goto undo;
    uint8_t *const base = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) goto undo;
    const uint32_t words[] = {ZONE_TABLE_VERSION, ZONE_TABLE_HEADER, sizeof(zone_slot),
                              ZONE_TABLE_SLOTS,   (uint32_t)getpid(), COUNTER_COUNT};
    memcpy(base + sizeof(uint64_t), words, sizeof words);
    counters_share((_Atomic uint64_t *)(void *)(base + ZONE_TABLE_COUNTERS), owner);
    // Last: with it, the rest is whole.
    atomic_store_explicit((_Atomic uint64_t *)(void *)base, ZONE_TABLE_MAGIC, memory_order_release);
    table->base = base;
    return;
undo:
    free(table->free);
    table->free = NULL;
    close(file);
}

// Each store is a release: none of them can be seen before the odd number that precedes it.
static void write_slot(zone_slot *slot, const zone_entry *entry) {
    const uint32_t sequence = atomic_load_explicit(&slot->sequence, memory_order_relaxed);
    atomic_store_explicit(&slot->sequence, sequence + 1, memory_order_relaxed);
    atomic_store_explicit(&slot->flags, entry->flags, memory_order_release);
    atomic_store_explicit(&slot->start, entry->start, memory_order_release);
    atomic_store_explicit(&slot->front, entry->front, memory_order_release);
    atomic_store_explicit(&slot->memory, entry->memory, memory_order_release);
    atomic_store_explicit(&slot->back, entry->back, memory_order_release);
    atomic_store_explicit(&slot->user, entry->user, memory_order_release);
    atomic_store_explicit(&slot->size, entry->size, memory_order_release);
    atomic_store_explicit(&slot->number, entry->number, memory_order_release);
    atomic_store_explicit(&slot->device, entry->device, memory_order_release);
    atomic_store_explicit(&slot->sequence, sequence + 2, memory_order_release);
}

void zone_table_name(zone_table *table, const uint8_t name[16]) {
    if (table->base != NULL) memcpy(table->base + ZONE_TABLE_SERVICE, name, 16);
}

bool zone_table_claim(zone_table *table, uint8_t phase, uint8_t mode, uint16_t repetition, const char *reason) {
    uint8_t *const base = atomic_load_explicit(&table->base, memory_order_acquire);
    if (base == NULL) return false;
    zone_claim *const claim = (zone_claim *)(void *)(base + ZONE_TABLE_CLAIM);
    uint64_t words[4] = {0};
    memcpy(words, reason, strnlen(reason, sizeof words - 1));
    const uint32_t sequence = atomic_load_explicit(&claim->sequence, memory_order_relaxed);
    atomic_store_explicit(&claim->sequence, sequence + 1, memory_order_relaxed);
    atomic_store_explicit(&claim->phase, phase, memory_order_release);
    atomic_store_explicit(&claim->mode, mode, memory_order_release);
    atomic_store_explicit(&claim->repetition, repetition, memory_order_release);
    for (size_t i = 0; i < 4; ++i) atomic_store_explicit(&claim->reason[i], words[i], memory_order_release);
    atomic_store_explicit(&claim->sequence, sequence + 2, memory_order_release);
    return true;
}

void zone_table_token(zone_table *table, uint64_t token) {
    if (table->base == NULL) return;
    atomic_store_explicit(&((zone_move *)(void *)(table->base + ZONE_TABLE_MOVE))->token, token, memory_order_release);
}

void zone_table_answer(zone_table *table, uint64_t answer, uint32_t prepared, uint32_t paused, const char *reason) {
    if (table->base == NULL) return;
    zone_move *const move = (zone_move *)(void *)(table->base + ZONE_TABLE_MOVE);
    uint64_t words[4] = {0};
    memcpy(words, reason, strnlen(reason, sizeof words - 1));
    // While it is written, it answers nothing.
    atomic_store_explicit(&move->answer, 0, memory_order_seq_cst);
    atomic_store_explicit(&move->prepared, prepared, memory_order_release);
    atomic_store_explicit(&move->paused, paused, memory_order_release);
    for (size_t i = 0; i < 4; ++i) atomic_store_explicit(&move->reason[i], words[i], memory_order_release);
    atomic_store_explicit(&move->answer, answer, memory_order_release);
}

int32_t zone_table_add(zone_table *table, const zone_entry *entry) {
    if (table->base == NULL) return -1;
    int32_t index = -1;
    if (table->free_count > 0) index = (int32_t)table->free[--table->free_count];
    else if (table->next < ZONE_TABLE_SLOTS) index = (int32_t)table->next++;
    if (index < 0) {
        counter_add(COUNT_unlisted);
        return -1;
    }
    write_slot(slot_at(table, index), entry);
    return index;
}

void zone_table_change(zone_table *table, int32_t slot, const zone_entry *entry) {
    if (table->base != NULL && slot >= 0) write_slot(slot_at(table, slot), entry);
}

void zone_table_mark(zone_table *table, int32_t slot, uint32_t flags) {
    if (table->base == NULL || slot < 0) return;
    zone_slot *const at = slot_at(table, slot);
    const uint32_t sequence = atomic_load_explicit(&at->sequence, memory_order_relaxed);
    atomic_store_explicit(&at->sequence, sequence + 1, memory_order_relaxed);
    atomic_store_explicit(&at->flags, flags, memory_order_release);
    atomic_store_explicit(&at->sequence, sequence + 2, memory_order_release);
    if (flags == 0) table->free[table->free_count++] = (uint32_t)slot;
}
