#define _GNU_SOURCE
#include "settings.h"

#include <stdlib.h>
#include <string.h>

#include "layout.h"

#define MIB ((uint64_t)1 << 20)

bool settings_bytes(const char *text, uint64_t *out) {
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; ++at) {
        const uint64_t digit = (uint64_t)(*at - '0');
        if (value > (UINT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    if (at == text) return false;
    unsigned shift = 0;
    switch (*at) {
        case '\0': break;
        case 'K': shift = 10; ++at; break;
        case 'M': shift = 20; ++at; break;
        case 'G': shift = 30; ++at; break;
        default: return false;
    }
    if (*at != '\0' || value > UINT64_MAX >> shift) return false;
    *out = value << shift;
    return true;
}

static bool is_set(const char *name, const char **value) {
    // secure_getenv: a program with more rights than its caller takes no file names from it.
    *value = secure_getenv(name);
    return *value != NULL && **value != '\0';
}

static void bytes(settings *s, const char *name, uint64_t least, uint64_t most, uint64_t *out) {
    const char *text;
    uint64_t value;
    if (!is_set(name, &text)) return;
    if (settings_bytes(text, &value) && value >= least && value <= most) *out = value;
    else ++s->refused;
}

// One of two words; returns the index of the one that is set, `standard` if none is.
static int word(settings *s, const char *name, const char *first, const char *second, int standard) {
    const char *text;
    if (!is_set(name, &text)) return standard;
    if (strcmp(text, first) == 0) return 0;
    if (strcmp(text, second) == 0) return 1;
    ++s->refused;
    return standard;
}

settings settings_read(void) {
    settings s = {
        .front = 16 * MIB,
        .back = 64 * MIB,
        // What plain allocations have: documented are 256, and textures may start at any allocation, which takes 512.
        .alignment = 512,
        .limit = UINT64_MAX,
        .uvm = "/dev/nvidia-uvm",
        // NCCL exports its own buffers by cuIpcGetMemHandle, and has its runtime linked into itself.
        .plain_callers = "libnccl.so:libnvshmem",
    };
    s.enabled = word(&s, "MPSGUARD_ZONES", "off", "on", 1) == 1;
    s.snapshots = word(&s, "MPSGUARD_ZONES_SNAPSHOTS", "off", "on", 1) == 1;
    s.slabs = word(&s, "MPSGUARD_ZONES_SMALL", "plain", "slab", 1) == 1;
    s.placement = word(&s, "MPSGUARD_ZONES_PLACEMENT", "end", "start", LAYOUT_PLACE_END);
    bytes(&s, "MPSGUARD_ZONES_FRONT", 0, 1024 * 1024 * MIB, &s.front);
    bytes(&s, "MPSGUARD_ZONES_BACK", 1, 1024 * 1024 * MIB, &s.back);
    bytes(&s, "MPSGUARD_ZONES_LIMIT", 0, UINT64_MAX, &s.limit);
    uint64_t alignment = s.alignment;
    bytes(&s, "MPSGUARD_ZONES_ALIGNMENT", 256, 2 * MIB, &alignment);
    if ((alignment & (alignment - 1)) == 0) s.alignment = alignment;
    else ++s.refused;
    const char *text;
    if (is_set("MPSGUARD_ZONES_UVM_DEVICE", &text)) s.uvm = text;
    if (is_set("MPSGUARD_ZONES_REPORT", &text)) s.report = text;
    if ((text = secure_getenv("MPSGUARD_ZONES_PLAIN_CALLERS")) != NULL) s.plain_callers = text;
    return s;
}
