#define _GNU_SOURCE
#include "process.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "counters.h"

#define PROCESS_OWNER UINT64_C(0x6d70736775617264)

__thread int process_inside;

static _Atomic(process *) current;

bool process_enabled(void) {
    const char *const text = secure_getenv("MPSGUARD_ZONES");
    return text == NULL || strcmp(text, "off") != 0;
}

process *process_if_any(void) {
    process *const p = atomic_load_explicit(&current, memory_order_acquire);
    return p != NULL && atomic_load_explicit(&p->owner, memory_order_relaxed) == PROCESS_OWNER ? p : NULL;
}

// No once-guard: a thread that is in it when another one forks would leave it half done in the child, for good.
process *process_get(void) {
    if (atomic_load_explicit(&current, memory_order_acquire) != NULL || !process_enabled()) return process_if_any();
    process *const made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return NULL;
    if (madvise(made, sizeof *made, MADV_WIPEONFORK) != 0 || pthread_mutex_init(&made->lock, NULL) != 0) {
        munmap(made, sizeof *made);
        return NULL;
    }
    made->set = settings_read();
    made->uvm.fd = -1;
    atomic_store_explicit(&made->owner, PROCESS_OWNER, memory_order_relaxed);
    process *nobody = NULL;
    if (!atomic_compare_exchange_strong(&current, &nobody, made)) {
        munmap(made, sizeof *made);
        return process_if_any();
    }
    for (unsigned i = 0; i < made->set.refused; ++i) counter_add(COUNT_settings_refused);
    pthread_mutex_lock(&made->lock);
    if (made->table.base == NULL) zone_table_open(&made->table, &made->owner);
    pthread_mutex_unlock(&made->lock);
    return made;
}

// At exit only, and only of the process that made the state: a child's exit is not ours to report.
__attribute__((destructor)) static void report(void) {
    const process *const p = process_if_any();
    if (p != NULL && p->set.report != NULL) counters_report(p->set.report);
}
