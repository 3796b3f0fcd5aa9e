// How a program's symbols reach the hooks, and how the hooks reach the driver's own functions.
//
// A program gets at the driver in four ways: linked against libcuda (our symbols come first, by LD_PRELOAD), by dlsym
// with a handle (our dlsym), by cuGetProcAddress (our hooks of it, found in one of the first two ways; so do both the
// shared and the static runtime library), and in a library loaded with RTLD_DEEPBIND (deepbind.c).
//
// A hook is given out only in place of the very function it stands for, known by its address: what a later driver
// returns under the same name for a later version is passed on untouched.
#pragma once

#include <stdbool.h>

#include "driver_api.h"

// For what runs whenever anybody calls dlsym: a sanitizer's runtime does so before it is ready to be called itself.
#define LOOKUP_EARLY __attribute__((no_sanitize("address"), no_sanitize("undefined"), no_sanitize("thread")))

// The driver's functions; NULL while no libcuda is loaded, or if it is too old. Asked again each time until it is there.
const mg_driver *lookup_driver(void);

// `found` is what the driver answered to cuGetProcAddress for `symbol`: it, or the hook that stands for it.
void *lookup_substitute(const mg_driver *d, const char *symbol, void *found);

// The hook that stands for the function `found`, exported by the driver under `name`; NULL if there is none.
void *lookup_hook(const mg_driver *d, const char *name, const void *found);

// The hook for the function that the driver exports under `name`; NULL if there is none.
void *lookup_hook_named(const char *name);

// Whether the code at `address` is in the driver, or in one of the libraries whose file names begin with a word of
// `list` (colon-separated).
bool lookup_is_in_driver(const mg_driver *d, const void *address);
bool lookup_is_in_library(const char *list, const void *address);

// glibc's own, past our hooks of them.
extern void *(*lookup_dlsym)(void *handle, const char *name) __attribute__((visibility("hidden")));
extern void *(*lookup_dlopen)(const char *file, int mode) __attribute__((visibility("hidden")));
