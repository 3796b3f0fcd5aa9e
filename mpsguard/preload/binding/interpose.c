// How a program's symbols reach the hooks.
//
// A program gets at the driver in four ways: linked against libcuda (our symbols come first, by LD_PRELOAD), by dlsym
// with a handle (our dlsym, here), by cuGetProcAddress (our hooks of it, found in one of the first two ways; so do both
// the shared and the static runtime library), and in a library loaded with RTLD_DEEPBIND (deepbind.c).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "binding/deepbind.h"
#include "binding/hook_table.h"
#include "lookup.h"
#include "process.h"

// What the stubs in trampoline.S are told: to jump on to glibc's own function, to answer NULL, or an answer.
#define PASS_ON ((void *)0)
#define ANSWER_NULL ((void *)1)

LOOKUP_EARLY __attribute__((visibility("hidden"))) void *interpose_dlsym(void *handle, const char *name, const void *caller) {
    lookup_find_glibc();
    // A program that has loaded a library asks for its entry points next.
    deepbind_catch_up();
    if (name == NULL || name[0] != 'c' || name[1] != 'u' || hook_table_named(name) == NULL) return PASS_ON;
    const mg_driver *const d = lookup_driver();
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        // From the caller's place glibc finds our symbol, or the driver's if the caller stands behind us; without a
        // driver, or with one that has no such function, the caller must not find ours, which would be of no use to it.
        return d == NULL || !lookup_has(name) ? ANSWER_NULL : PASS_ON;
    }
    if (d == NULL || !process_enabled() || lookup_is_in_driver(d, caller)) return PASS_ON;
    void *const found = lookup_dlsym(handle, name);
    void *const hook = found != NULL ? hook_table_find(d, name, found) : NULL;
    return hook != NULL ? hook : PASS_ON;
}

LOOKUP_EARLY __attribute__((visibility("hidden"))) void *interpose_dlopen(const char *file, int mode) {
    lookup_find_glibc();
    if (!(mode & RTLD_DEEPBIND) || !process_enabled()) return PASS_ON;
    return deepbind_open(file, mode);
}
