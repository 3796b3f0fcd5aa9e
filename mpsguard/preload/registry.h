// The live regions by address. The caller holds the process's lock.
#pragma once

#include "process.h"

// False if there is no host memory for one more.
bool registry_add(process *p, region *r);

// The region with `address` among its reserved addresses, or NULL.
region *registry_find(const process *p, mg_address address);

void registry_remove(process *p, const region *r);
