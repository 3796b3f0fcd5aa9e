// Which of several visible devices the program uses. With one, memory is placed there. From the second one's context on all memory is
// plain, and what was placed before is opened to that device: peers reach plain memory by cuCtxEnablePeerAccess, but memory that is
// mapped as regions are only by an access of its own.
#pragma once

#include "process.h"

// How many are visible; 0: the driver does not say.
int devices_visible(process *p, const mg_driver *d);

// A context of the program on that device was made, or is used.
void devices_note(process *p, const mg_driver *d, mg_device device);

// Whether memory of that device may be placed: the program uses no other one, and all others could reach it.
bool devices_allow(process *p, const mg_driver *d, mg_device device);

// After something was placed: if another device came meanwhile, it is opened to that too.
void devices_catch_up(process *p, const mg_driver *d);
