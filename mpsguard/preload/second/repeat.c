#include "second/repeat.h"

#include <string.h>

#include "second/logged.h"
#include "second/objects.h"
#include "second/rebuild.h"
#include "second/roles.h"
#include "second/structures.h"
#include "second/translate.h"

bool repeat_launch(log_entry *entry, word stream) {
    const unsigned char *at = log_bytes(entry);
    logged_launch kept;
    memcpy(&kept, at, sizeof kept);
    at += sizeof kept;
    launch_attribute attributes[kept.attribute_count + 1];
    unsigned count = 0;
    for (unsigned i = 0; i < kept.attribute_count; ++i) {
        memcpy(&attributes[count], at, sizeof *attributes);
        at += sizeof *attributes;
        // One that begins before the one before it has ended: here, none does.
        if (attributes[count].id != ATTRIBUTE_PROGRAMMATIC_SERIALIZATION) ++count;
    }
    const size_t parameter_count = kept.layout != NULL ? kept.layout->count : 0;
    const void *parameters[parameter_count + 1];
    for (size_t i = 0; i < parameter_count; ++i) parameters[i] = at + kept.layout->parameters[i].offset;
    const word packed[] = {EXTRA_POINTER, WORD(at), EXTRA_SIZE, WORD(&kept.size), EXTRA_END};
    object *const of = kept.of != NULL ? objects_still(kept.of) : NULL;
    if (of == NULL) return false;
    const word function = rebuild_translate_object(of), given = kept.layout != NULL ? WORD(parameters) : 0,
               extra = kept.packed ? WORD(packed) : 0;
    const unsigned *const s = kept.sizes;
    if (function == 0) return false;
    if (roles_has_config((function_id)entry->function)) {
        launch_config config = {.stream = stream, .attributes = attributes, .attribute_count = count};
        memcpy(config.sizes, s, sizeof config.sizes);
        return CALL(copies_at_work(), cuLaunchKernelEx, WORD(&config), function, given, extra) == MG_SUCCESS;
    }
    const word words[] = {function, s[0], s[1], s[2], s[3], s[4], s[5], s[6], stream, given, extra};
    return copies_call(copies_at_work(), (function_id)entry->function, words, functions[entry->function].count) == MG_SUCCESS;
}

bool repeat_call(log_entry *entry, word stream) {
    const function_id id = (function_id)entry->function;
    word words[MOST_PARAMETERS], translated[MOST_PARAMETERS];
    translate_room room;
    memcpy(words, entry->words, entry->count * sizeof *words);
    if (facts[id].stream != NO_STREAM) words[facts[id].stream] = stream;
    if (facts[id].shape == SHAPE_PLANE) words[0] = WORD(log_bytes(entry));
    return translate_words(id, words, translated, &room) &&
           copies_call(copies_at_work(), id, translated, functions[id].count) == MG_SUCCESS;
}
