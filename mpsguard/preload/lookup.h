// The driver's own functions, and glibc's own dlsym and dlopen, past our hooks of them.
#pragma once

#include <stdbool.h>

#include "driver_api.h"

// For what runs whenever anything calls dlsym: a sanitizer's runtime does so before it is ready to be called itself.
#define LOOKUP_EARLY __attribute__((no_sanitize("address"), no_sanitize("undefined"), no_sanitize("thread")))

// The driver's functions; NULL while no libcuda is loaded, or if it is too old. Asked again each time until it is there.
const mg_driver *lookup_driver(void);

// Whether there is a function of that name behind the preload: in the driver, or in what another tool puts before it.
bool lookup_has(const char *name);

// Whether the code at `address` is in the driver, or in a library with a file name that begins with a word of
// `list` (colon-separated).
bool lookup_is_in_driver(const mg_driver *d, const void *address);
bool lookup_is_in_library(const char *list, const void *address);

// glibc's own functions; NULL before the first `lookup_find_glibc`.
extern void *(*lookup_dlsym)(void *handle, const char *name) __attribute__((visibility("hidden")));
extern void *(*lookup_dlopen)(const char *file, int mode) __attribute__((visibility("hidden")));
void lookup_find_glibc(void);
