#include "second/calls.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lookup.h"
#include "second/wrappers.h"

static mg_driver *wrapped(const mg_driver *driver) {
    mg_driver *const made = malloc(sizeof *made);
    if (made == NULL) return NULL;
    *made = *driver;
#define WRAP(member, name, parameters)                                                       \
    do {                                                                             \
        void *const wrapper = made->member != NULL ? wrappers_named(#name) : NULL;     \
        if (wrapper != NULL) memcpy(&made->member, &wrapper, sizeof wrapper);          \
    } while (0);
    MG_REQUIRED_FUNCTIONS(WRAP) MG_OPTIONAL_FUNCTIONS(WRAP)
#undef WRAP
    return made;
}

const mg_driver *calls_driver(void) {
    static _Atomic(mg_driver *) calls;
    mg_driver *known = atomic_load_explicit(&calls, memory_order_acquire);
    if (known != NULL) return known;
    const mg_driver *const driver = lookup_driver();
    if (driver == NULL || !wrappers_wanted()) return driver;
    mg_driver *const made = wrapped(driver);
    if (made == NULL) return NULL;
    if (atomic_compare_exchange_strong(&calls, &known, made)) return made;
    free(made);
    return known;
}
