// What the hooks share.
#pragma once

#include <stdbool.h>

#include "driver_api.h"
#include "binding/hook_list.h"

#define EXPORTED __attribute__((visibility("default")))

// The driver for a hook, or NULL: then there is none, and nothing to pass on to.
const mg_driver *hooks_driver(void);

#define DRIVER_OR_FAIL(d, member)              \
    const mg_driver *const d = hooks_driver(); \
    if (d == NULL || d->member == NULL) return MG_NOT_INITIALIZED

// Whether something that we held without need was given back, so that what was out of memory can be tried again.
bool hooks_make_room(const mg_driver *d);
