#include "layout.h"

#define ADDRESS_BITS 47

uint64_t layout_round_up(uint64_t value, uint64_t unit) {
    if (value > UINT64_MAX - (unit - 1)) return 0;
    return (value + (unit - 1)) & ~(unit - 1);
}

uint64_t layout_place(const layout *at, uint64_t size, uint64_t alignment, int placement) {
    return placement == LAYOUT_PLACE_END ? at->front + at->memory - layout_round_up(size, alignment) : at->front;
}

bool layout_plan(uint64_t size, uint64_t front, uint64_t back, uint64_t granularity, uint64_t alignment, int placement,
                 layout *out) {
    const uint64_t most = (uint64_t)1 << ADDRESS_BITS;
    if (size == 0 || size > most || front > most || back > most) return false;
    out->front = layout_round_up(front, granularity);
    out->memory = layout_round_up(size, granularity);
    out->back = layout_round_up(back, granularity);
    out->total = out->front + out->memory + out->back;
    out->user = layout_place(out, size, alignment, placement);
    return out->total <= most;
}

uint64_t layout_allowed(uint64_t free, uint64_t margin, uint64_t limit) {
    const uint64_t share = free > margin ? (free - margin) / 4 : 0;
    return share < limit ? share : limit;
}

uint64_t layout_zone(uint64_t wanted, uint64_t left, uint64_t granularity) {
    const uint64_t most = left / 16 & ~(granularity - 1);
    const uint64_t rounded = layout_round_up(wanted, granularity);
    if (rounded <= most) return rounded;
    return most > granularity ? most : granularity;
}
