#include "second/translate.h"

#include <string.h>

#include "second/rebuild.h"
#include "second/roles.h"
#include "second/variables.h"

bool translate_address(word *address) {
    word owner;
    const word at = variables_translate(*address, &owner), given = *address;
    *address = at;
    if (owner == 0) return true;
    // Its module is made when it is first used, which is now.
    if (rebuild_translate(owner) == 0) return false;
    *address = variables_translate(given, &owner);
    return owner == 0;
}

static bool translate_addresses(function_id id, word *out, plane_copy *plane) {
    const char *const name = copies_name(id);
    if (strncmp(name, "cuMemset", 8) == 0) return translate_address(&out[0]);
    if (strncmp(name, "cuMemcpy2D", 10) == 0) {
        if (out[0] == 0) return true;
        *plane = *(const plane_copy *)POINTER(out[0]);
        out[0] = WORD(plane);
        return translate_address(&plane->words[PLANE_FROM]) && translate_address(&plane->words[PLANE_TO]);
    }
    return strncmp(name, "cuMemcpy", 8) != 0 || (translate_address(&out[0]) && translate_address(&out[1]));
}

// The place of CUlaunchConfig among the words; -1: there is none.
static int place_of_config(function_id id) {
    if (roles_has_config(id)) return 0;
    return id == FUNCTION_cuOccupancyMaxActiveClusters || id == FUNCTION_cuOccupancyMaxPotentialClusterSize ? 2 : -1;
}

bool translate_words(function_id id, const word *a, word *out, translate_room *room) {
    launch_config *const config = &room->config;
    memcpy(out, a, functions[id].count * sizeof *out);
    if (functions[id].role != ROLE_refuse && !translate_addresses(id, out, &room->plane)) return false;
    for (size_t i = 0; i < functions[id].count; ++i) {
        const kind k = functions[id].kinds[i];
        if (k < KIND_CONTEXT || k > KIND_EXEC) continue;
        out[i] = rebuild_translate(a[i]);
        if (a[i] != 0 && out[i] == 0) return false;
    }
    const int place = place_of_config(id);
    if (place < 0 || a[place] == 0) return true;
    *config = *(const launch_config *)POINTER(a[place]);
    if (config->stream != 0 && (config->stream = rebuild_translate(config->stream)) == 0) return false;
    out[place] = WORD(config);
    return true;
}

void translate_back(function_id id, const word *a) {
    for (size_t i = 0; i < functions[id].count; ++i) {
        word *const out = POINTER(a[i]);
        if (functions[id].kinds[i] >= KIND_OUT_CONTEXT && out != NULL) *out = rebuild_new_key(*out);
    }
}
