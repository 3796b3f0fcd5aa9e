#include "second/request.h"

#include <stddef.h>

#include "process.h"

// Above the number of a request: the share in its lower half, and what is asked beside it.
enum { SHARE_BITS = 16, SHUT_DOWN = 1 };

request request_now(void) {
    const process *const p = process_if_any();
    const uint64_t word = p != NULL ? zone_table_asked(&p->table) : 0;
    return (request){(uint32_t)word, (unsigned)(word >> 32 & ((1U << SHARE_BITS) - 1)), (word >> (32 + SHARE_BITS) & SHUT_DOWN) != 0};
}

bool request_stands(const request *asked) { return request_now().number == asked->number; }

static uint32_t microseconds(double milliseconds) {
    return milliseconds <= 0 ? 0 : milliseconds < 4e6 ? (uint32_t)(1e3 * milliseconds) : UINT32_MAX;
}

void request_say(const request *asked, request_answer answer, double prepared, double paused, const char *reason) {
    process *const p = process_if_any();
    if (p == NULL) return;
    zone_table_answer(&p->table, asked->number | (uint64_t)answer << 32, microseconds(prepared), microseconds(paused),
                      reason != NULL ? reason : "");
}
