// Which hook stands for which function of the driver.
//
// A hook is given out only in place of the very function it stands for, known by its address: what a later driver
// returns under the same name for a later version is passed on untouched.
#pragma once

#include "driver_api.h"

// `found` is what the driver answered to cuGetProcAddress for `symbol`: it, or the hook that stands for it.
void *hook_table_substitute(const mg_driver *d, const char *symbol, void *found);

// The hook that stands for the function `found`, exported by the driver under `name`; NULL if there is none.
void *hook_table_find(const mg_driver *d, const char *name, const void *found);

// The hook for the function that the driver exports under `name`; NULL if there is none.
void *hook_table_named(const char *name);
