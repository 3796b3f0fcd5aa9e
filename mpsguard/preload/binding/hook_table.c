#include "binding/hook_table.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "binding/hook_list.h"
#include "process.h"
#include "second/wrappers.h"

typedef struct {
    const char *exported, *symbol;
    int since, per_thread;
    void *hook;
    size_t member;                 // of the driver's own function in mg_driver
    _Atomic(void *) by_query;      // what cuGetProcAddress returns for it; NULL: not asked yet
} hook_entry;

static hook_entry hooks[] = {
#define HOOK_ENTRY(member, name, symbol, since, per_thread) \
    {#name, symbol, since, per_thread, (void *)name, offsetof(mg_driver, member), NULL},
    HOOKS(HOOK_ENTRY)
#undef HOOK_ENTRY
};
#define HOOK_COUNT (sizeof hooks / sizeof *hooks)

static void *function_of(const mg_driver *d, const hook_entry *entry) {
    void *function;
    memcpy(&function, (const char *)d + entry->member, sizeof function);
    return function;
}

void *hook_table_named(const char *name) {
    for (size_t i = 0; i < HOOK_COUNT; ++i)
        if (strcmp(hooks[i].exported, name) == 0) return hooks[i].hook;
    return wrappers_named(name);
}

void *hook_table_find(const mg_driver *d, const char *name, const void *found) {
    for (size_t i = 0; i < HOOK_COUNT; ++i)
        if (strcmp(hooks[i].exported, name) == 0 && function_of(d, &hooks[i]) == found) return hooks[i].hook;
    return wrappers_wanted() ? wrappers_of(found) : NULL;
}

// Asked only from within the program's own query: before that, the driver may not be ready for questions.
static void *by_query(const mg_driver *d, hook_entry *entry) {
    void *known = atomic_load_explicit(&entry->by_query, memory_order_relaxed);
    if (known != NULL) return known;
    const uint64_t flags = entry->per_thread ? MG_PER_THREAD_STREAM : MG_LEGACY_STREAM;
    if (d->get_proc_address(entry->symbol, &known, entry->since, flags) != MG_SUCCESS) return NULL;
    atomic_store_explicit(&entry->by_query, known, memory_order_relaxed);
    return known;
}

void *hook_table_substitute(const mg_driver *d, const char *symbol, void *found) {
    if (found == NULL || !process_enabled()) return found;
    for (size_t i = 0; i < HOOK_COUNT; ++i) {
        hook_entry *const entry = &hooks[i];
        const void *const exported = function_of(d, entry);
        if (exported == NULL || (strcmp(entry->symbol, symbol) != 0 && strcmp(entry->exported, symbol) != 0)) continue;
        if (found == exported || found == by_query(d, entry)) return entry->hook;
    }
    if (!wrappers_wanted()) return found;
    void *const wrapper = wrappers_of(found);
    if (wrapper == NULL) wrappers_note_unknown(symbol);
    return wrapper != NULL ? wrapper : found;
}
