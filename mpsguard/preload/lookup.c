#define _GNU_SOURCE
#include "lookup.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "deepbind.h"
#include "hooks.h"
#include "process.h"

// The versions under which glibc has had them from the start on each machine: asking for one that is not there would
// allocate memory (for dlerror), and an allocator may ask dlsym for its own functions just then.
#if defined(__x86_64__)
#define GLIBC_FIRST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define GLIBC_FIRST "GLIBC_2.17"
#else
#error "the preload is made for x86_64 and aarch64"
#endif

void *(*lookup_dlsym)(void *, const char *);
void *(*lookup_dlopen)(const char *, int);

typedef struct {
    const char *exported, *symbol;
    int since, per_thread;
    void *hook;
    size_t member;                 // of the driver's own function in mg_driver
    _Atomic(void *) by_query;      // what cuGetProcAddress returns for it; NULL: not asked yet
} hook_entry;

static hook_entry hooks[] = {
#define HOOK_ENTRY(name, symbol, since, per_thread) \
    {#name, symbol, since, per_thread, (void *)name, offsetof(mg_driver, name), NULL},
    HOOKS(HOOK_ENTRY)
#undef HOOK_ENTRY
};
#define HOOK_COUNT (sizeof hooks / sizeof *hooks)

// Threads that come here together store the same value.
LOOKUP_EARLY static void find_glibc(void) {
    if (lookup_dlsym == NULL) lookup_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", GLIBC_FIRST);
    if (lookup_dlopen == NULL) lookup_dlopen = (void *(*)(const char *, int))dlvsym(RTLD_NEXT, "dlopen", GLIBC_FIRST);
}

static void *function_of(const mg_driver *d, const hook_entry *entry) {
    void *function;
    memcpy(&function, (const char *)d + entry->member, sizeof function);
    return function;
}

static bool load(mg_driver *d) {
    static const struct {
        const char *name;
        size_t member;
        bool required;
    } functions[] = {
#define REQUIRED(name, parameters) {#name, offsetof(mg_driver, name), true},
#define OPTIONAL(name, parameters) {#name, offsetof(mg_driver, name), false},
        MG_REQUIRED_FUNCTIONS(REQUIRED) MG_OPTIONAL_FUNCTIONS(OPTIONAL)
#undef REQUIRED
#undef OPTIONAL
    };
    // A handle of its own keeps the driver loaded; RTLD_NEXT is for a program linked to one under another name.
    void *handle = lookup_dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) handle = RTLD_NEXT;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        void *const found = lookup_dlsym(handle, functions[i].name);
        if (found == NULL && functions[i].required) {
            if (handle != RTLD_NEXT) dlclose(handle);
            return false;
        }
        memcpy((char *)d + functions[i].member, &found, sizeof found);
    }
    return true;
}

const mg_driver *lookup_driver(void) {
    static _Atomic(mg_driver *) driver;
    mg_driver *known = atomic_load_explicit(&driver, memory_order_acquire);
    if (known != NULL) return known;
    find_glibc();
    if (lookup_dlsym == NULL || lookup_dlopen == NULL) return NULL;
    mg_driver *const made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    if (!load(made) || !atomic_compare_exchange_strong(&driver, &known, made)) {
        free(made);
        return known;
    }
    return made;
}

void *lookup_hook_named(const char *name) {
    for (size_t i = 0; i < HOOK_COUNT; ++i)
        if (strcmp(hooks[i].exported, name) == 0) return hooks[i].hook;
    return NULL;
}

void *lookup_hook(const mg_driver *d, const char *name, const void *found) {
    for (size_t i = 0; i < HOOK_COUNT; ++i)
        if (strcmp(hooks[i].exported, name) == 0 && function_of(d, &hooks[i]) == found) return hooks[i].hook;
    return NULL;
}

// Asked only from within the program's own query: before that, the driver may not be ready for questions.
static void *by_query(const mg_driver *d, hook_entry *entry) {
    void *known = atomic_load_explicit(&entry->by_query, memory_order_relaxed);
    if (known != NULL) return known;
    const uint64_t flags = entry->per_thread ? MG_PER_THREAD_STREAM : MG_LEGACY_STREAM;
    if (d->cuGetProcAddress(entry->symbol, &known, entry->since, flags) != MG_SUCCESS) return NULL;
    atomic_store_explicit(&entry->by_query, known, memory_order_relaxed);
    return known;
}

void *lookup_substitute(const mg_driver *d, const char *symbol, void *found) {
    if (found == NULL || !process_enabled()) return found;
    for (size_t i = 0; i < HOOK_COUNT; ++i) {
        hook_entry *const entry = &hooks[i];
        const void *const exported = function_of(d, entry);
        if (exported == NULL || (strcmp(entry->symbol, symbol) != 0 && strcmp(entry->exported, symbol) != 0)) continue;
        if (found == exported || found == by_query(d, entry)) return entry->hook;
    }
    return found;
}

bool lookup_is_in_driver(const mg_driver *d, const void *address) {
    Dl_info driver, other;
    return dladdr((const void *)d->cuMemAlloc_v2, &driver) && dladdr(address, &other) &&
           driver.dli_fbase == other.dli_fbase;
}

bool lookup_is_in_library(const char *list, const void *address) {
    Dl_info library;
    if (*list == '\0' || !dladdr(address, &library) || library.dli_fname == NULL) return false;
    const char *const slash = strrchr(library.dli_fname, '/');
    const char *const name = slash != NULL ? slash + 1 : library.dli_fname;
    while (*list != '\0') {
        const size_t length = strcspn(list, ":");
        if (length > 0 && strncmp(name, list, length) == 0) return true;
        list += length + (list[length] == ':');
    }
    return false;
}

// What the stubs in trampoline.S are told: to jump on to glibc's own function, to answer NULL, or an answer.
#define PASS_ON ((void *)0)
#define ANSWER_NULL ((void *)1)

LOOKUP_EARLY __attribute__((visibility("hidden"))) void *lookup_on_dlsym(void *handle, const char *name, const void *caller) {
    find_glibc();
    // A program that has loaded a library asks for its entry points next.
    deepbind_catch_up();
    if (name == NULL || name[0] != 'c' || name[1] != 'u' || lookup_hook_named(name) == NULL) return PASS_ON;
    const mg_driver *const d = lookup_driver();
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        // From the caller's place glibc finds our symbol, or the driver's if the caller stands behind us; without a
        // driver the caller must not find ours, which would be of no use to it.
        return d == NULL ? ANSWER_NULL : PASS_ON;
    }
    if (d == NULL || !process_enabled() || lookup_is_in_driver(d, caller)) return PASS_ON;
    void *const found = lookup_dlsym(handle, name);
    void *const hook = found != NULL ? lookup_hook(d, name, found) : NULL;
    return hook != NULL ? hook : PASS_ON;
}

LOOKUP_EARLY __attribute__((visibility("hidden"))) void *lookup_on_dlopen(const char *file, int mode) {
    find_glibc();
    if (!(mode & RTLD_DEEPBIND) || !process_enabled()) return PASS_ON;
    return deepbind_open(file, mode);
}
