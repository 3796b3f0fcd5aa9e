#include "registry.h"

#include <stdlib.h>
#include <string.h>

#include "region_record.h"

// The number of regions that start at or below `address`.
static size_t below(const process *p, mg_address address) {
    size_t low = 0, high = p->live_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (p->live[middle]->start <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

bool registry_add(process *p, region *r) {
    if (p->live_count == p->live_room) {
        const size_t room = p->live_room == 0 ? 256 : p->live_room * 2;
        region **const grown = realloc(p->live, room * sizeof *grown);
        if (grown == NULL) return false;
        p->live = grown;
        p->live_room = room;
    }
    const size_t index = below(p, r->start);
    memmove(p->live + index + 1, p->live + index, (p->live_count - index) * sizeof *p->live);
    p->live[index] = r;
    ++p->live_count;
    return true;
}

region *registry_find(const process *p, mg_address address) {
    const size_t index = below(p, address);
    if (index == 0) return NULL;
    region *const r = p->live[index - 1];
    return address - r->start < r->at.total ? r : NULL;
}

void registry_remove(process *p, const region *r) {
    const size_t index = below(p, r->start);
    if (index == 0 || p->live[index - 1] != r) return;
    memmove(p->live + index - 1, p->live + index, (p->live_count - index) * sizeof *p->live);
    --p->live_count;
}
