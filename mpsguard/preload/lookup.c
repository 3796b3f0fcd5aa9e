#define _GNU_SOURCE
#include "lookup.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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

// Threads that come here together store the same value.
LOOKUP_EARLY void lookup_find_glibc(void) {
    if (lookup_dlsym == NULL) lookup_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", GLIBC_FIRST);
    if (lookup_dlopen == NULL) lookup_dlopen = (void *(*)(const char *, int))dlvsym(RTLD_NEXT, "dlopen", GLIBC_FIRST);
}

static _Atomic(void *) in;  // the handle in which functions are found

static bool load(mg_driver *d) {
    static const struct {
        const char *name;
        size_t member;
        bool required;
    } functions[] = {
#define REQUIRED(member, name, parameters) {#name, offsetof(mg_driver, member), true},
#define OPTIONAL(member, name, parameters) {#name, offsetof(mg_driver, member), false},
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
    atomic_store_explicit(&in, handle, memory_order_release);
    return true;
}

bool lookup_has(const char *name) {
    void *const handle = atomic_load_explicit(&in, memory_order_acquire);
    return lookup_dlsym(RTLD_NEXT, name) != NULL || (handle != NULL && lookup_dlsym(handle, name) != NULL);
}

const mg_driver *lookup_driver(void) {
    static _Atomic(mg_driver *) driver;
    mg_driver *known = atomic_load_explicit(&driver, memory_order_acquire);
    if (known != NULL) return known;
    lookup_find_glibc();
    if (lookup_dlsym == NULL || lookup_dlopen == NULL) return NULL;
    mg_driver *const made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    if (!load(made) || !atomic_compare_exchange_strong(&driver, &known, made)) {
        free(made);
        return known;
    }
    return made;
}

bool lookup_is_in_driver(const mg_driver *d, const void *address) {
    Dl_info driver, other;
    return dladdr((const void *)d->mem_alloc_v2, &driver) && dladdr(address, &other) &&
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
