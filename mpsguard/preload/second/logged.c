#include "second/logged.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "second/host_memory.h"
#include "second/host_reads.h"
#include "second/mappings.h"
#include "second/objects.h"
#include "second/roles.h"
#include "second/structures.h"
#include "second/variables.h"

enum { MOST_PARAMETER_COUNT = 4096 };

static bool is_gpu_memory(word at) {
    return mappings_have(at) || variables_have(at);
}

// Not so is memory of the driver's own pools, or a variable that was not looked for yet: nothing here can read those.
static bool is_host_memory(word at) {
    unsigned type = 0;
    if (host_memory_is_pinned(at, 1)) return true;
    const mg_result result = CALL(copies_at_hand(), cuPointerGetAttribute, WORD(&type), POINTER_MEMORY_TYPE, at);
    return result == MG_INVALID_VALUE || (result == MG_SUCCESS && type == MEMORY_HOST);
}

static void not_kept(function_id id) { log_break(REASON_unlogged, copies_name(id)); }

// Of a kernel; NULL if the driver does not tell (it does since CUDA 12.4).
static parameter_layout *find_layout(object *of) {
    const function_id ask =
        of->kind == OBJECT_KERNEL_OF_LIBRARY ? FUNCTION_cuKernelGetParamInfo : FUNCTION_cuFuncGetParamInfo;
    size_t offset = 0, size = 0, count = 0;
    const word native = atomic_load_explicit(&of->at[copies_at_hand()->number], memory_order_acquire);
    mg_result result = MG_SUCCESS;
    while (count < MOST_PARAMETER_COUNT &&
           (result = copies_call(copies_at_hand(), ask, (const word[]){native, count, WORD(&offset), WORD(&size)}, 4)) == MG_SUCCESS)
        ++count;
    if (result != MG_INVALID_VALUE) return NULL;
    parameter_layout *const made = calloc(1, sizeof *made + count * sizeof made->parameters[0]);
    if (made == NULL) return NULL;
    made->count = count;
    for (size_t i = 0; i < count; ++i) {
        const word words[] = {native, i, WORD(&made->parameters[i].offset), WORD(&made->parameters[i].size)};
        if (copies_call(copies_at_hand(), ask, words, 4) != MG_SUCCESS) return free(made), NULL;
        const size_t end = made->parameters[i].offset + made->parameters[i].size;
        if (end > made->size) made->size = end;
    }
    parameter_layout *known = NULL;
    if (atomic_compare_exchange_strong(&of->layout, &known, made)) return made;
    free(made);
    return known;
}

static parameter_layout *layout_of(word function) {
    object *const of = objects_find(function);
    if (of == NULL) return NULL;
    parameter_layout *const known = atomic_load_explicit(&of->layout, memory_order_acquire);
    return known != NULL ? known : find_layout(of);
}

typedef struct {
    word function, parameters, extra;
    unsigned sizes[7];
    const launch_attribute *attributes;
    unsigned attribute_count;
} given_launch;

static given_launch launch_of(function_id id, const word *a) {
    given_launch made = {0};
    if (roles_has_config(id)) {
        const launch_config *const config = POINTER(a[0]);
        made = (given_launch){.function = a[1], .parameters = a[2], .extra = a[3], .attributes = config->attributes,
                              .attribute_count = config->attribute_count};
        memcpy(made.sizes, config->sizes, sizeof made.sizes);
        return made;
    }
    made.function = a[0];
    for (size_t i = 0; i < 7; ++i) made.sizes[i] = (unsigned)a[1 + i];
    made.parameters = a[9];
    if (functions[id].count > 10) made.extra = a[10];
    return made;
}

static bool packed_parameters(const word *extra, const void **bytes, uint64_t *size) {
    *bytes = NULL;
    *size = 0;
    for (; *extra != EXTRA_END; extra += 2) {
        if (extra[0] == EXTRA_POINTER) *bytes = POINTER(extra[1]);
        else if (extra[0] == EXTRA_SIZE) *size = *(const size_t *)POINTER(extra[1]);
        else return false;
    }
    return true;
}

// A launch as it will be kept, with `bytes` for what follows; false if its parameters are not known.
static bool measure_launch(const given_launch *given, logged_launch *kept, const void **packed, uint64_t *bytes) {
    *kept = (logged_launch){.of = objects_find(given->function), .attribute_count = given->attribute_count};
    *packed = NULL;
    memcpy(kept->sizes, given->sizes, sizeof kept->sizes);
    if (given->parameters != 0) {
        kept->layout = layout_of(given->function);
        if (kept->layout == NULL) return false;
        kept->size = kept->layout->size;
    } else if (given->extra != 0) {
        kept->packed = true;
        if (!packed_parameters(POINTER(given->extra), packed, &kept->size)) return false;
    }
    *bytes = sizeof *kept + given->attribute_count * sizeof *given->attributes + kept->size;
    return true;
}

// Into `entry`, which may be NULL: what is given is looked at in any case.
static void fill_launch(log_entry *entry, const given_launch *given, const logged_launch *kept, const void *packed) {
    const uint64_t attributes = given->attribute_count * sizeof *given->attributes;
    unsigned char *const to = entry != NULL ? log_bytes(entry) : NULL, *const bytes = to != NULL ? to + sizeof *kept + attributes : NULL;
    if (to != NULL) {
        memcpy(to, kept, sizeof *kept);
        if (attributes > 0) memcpy(to + sizeof *kept, given->attributes, attributes);
        if (packed != NULL) memcpy(bytes, packed, kept->size);
    }
    if (packed != NULL) host_memory_look(packed, kept->size, 0);
    void *const *const parameters = POINTER(given->parameters);
    for (size_t i = 0; kept->layout != NULL && i < kept->layout->count; ++i) {
        const size_t size = kept->layout->parameters[i].size;
        if (bytes != NULL) memcpy(bytes + kept->layout->parameters[i].offset, parameters[i], size);
        host_memory_look(parameters[i], size, 0);
    }
}

static void keep_launch(function_id id, const word *a, const work_stream *stream) {
    const given_launch given = launch_of(id, a);
    logged_launch kept;
    const void *packed;
    uint64_t bytes;
    if (measure_launch(&given, &kept, &packed, &bytes))
        fill_launch(log_add(LOG_LAUNCH, id, stream, NULL, 0, bytes), &given, &kept, packed);
    else if (given.parameters != 0) log_end(REASON_unlogged, "parameters of a kernel");
    else not_kept(id);
}

static void keep_to_device(function_id id, const work_stream *stream, word to, word from, uint64_t size) {
    const word words[] = {to, from, size};
    if (!log_is_on()) return;
    // What a copy to the host has yet to write there cannot be known.
    if (host_reads_overlap(from, size)) return not_kept(id);
    log_entry *const entry = log_add(LOG_TO_DEVICE, id, stream, words, 3, size);
    if (entry != NULL) memcpy(log_bytes(entry), POINTER(from), size);
}

// A copy without a stream is over when the call returns.
static bool returns_late(function_id id) { return facts[id].stream == NO_STREAM; }

// Which side of a copy is the host's: with one address space for all, the function does not say.
static shape direction_of(function_id id, const word *a) {
    const shape known = facts[id].shape;
    const bool to_gpu = known == SHAPE_TO_HOST ? mappings_have(a[0]) : is_gpu_memory(a[0]);
    const bool from_gpu = known == SHAPE_TO_DEVICE ? mappings_have(a[1]) : is_gpu_memory(a[1]);
    if (to_gpu && from_gpu) return SHAPE_BETWEEN;
    if (to_gpu && is_host_memory(a[1])) return SHAPE_TO_DEVICE;
    return from_gpu && is_host_memory(a[0]) ? SHAPE_TO_HOST : SHAPE_OTHER;
}

log_entry *logged_before(function_id id, const word *a) {
    const shape known = facts[id].shape;
    if ((known != SHAPE_TO_HOST && known != SHAPE_ANY) || !log_is_on() || a[2] == 0) return NULL;
    if (direction_of(id, a) != SHAPE_TO_HOST) return NULL;
    // Two that write to the same memory: which of them it holds cannot be told.
    if (host_reads_overlap(a[0], a[2])) not_kept(id);
    log_entry *const entry = log_add(LOG_TO_HOST, id, NULL, a, 3, a[2]);
    if (entry != NULL && !returns_late(id)) memcpy(log_bytes(entry), POINTER(a[0]), a[2]);
    return entry;
}

static void keep_copy(log_entry *before, function_id id, const word *a, const work_stream *stream) {
    if (a[2] == 0) return;
    // Whatever of the GPU's it was written to.
    if (host_memory_is_there() && !mappings_have(a[1]) && is_host_memory(a[1]))
        host_memory_look(POINTER(a[1]), a[2], a[0]);
    if (!log_is_on()) return;
    switch (direction_of(id, a)) {
        case SHAPE_TO_DEVICE: keep_to_device(id, stream, a[0], a[1], a[2]); return;
        case SHAPE_BETWEEN: log_add(LOG_CALL, id, stream, a, functions[id].count, 0); return;
        case SHAPE_TO_HOST:
            // One to other memory than the driver knows is over when the call returns, too.
            if (before == NULL || stream == NULL) not_kept(id);
            else if (returns_late(id) || !host_memory_is_pinned(a[0], a[2])) host_reads_add_seen(before);
            else host_reads_add(before, work_handle(stream));
            return;
        default: not_kept(id);
    }
}

static void look_at_rows(const word *w, word from) {
    for (word row = 0; row < w[PLANE_HEIGHT]; ++row) {
        const word at = from + (w[PLANE_FROM_Y] + row) * w[PLANE_FROM_PITCH] + w[PLANE_FROM_X];
        const word to = w[PLANE_TO] + (w[PLANE_TO_Y] + row) * w[PLANE_TO_PITCH] + w[PLANE_TO_X];
        host_memory_look(POINTER(at), w[PLANE_WIDTH], to);
    }
}

static void keep_plane(function_id id, const word *a, const work_stream *stream) {
    const plane_copy *const plane = POINTER(a[0]);
    log_entry *const entry = log_add(LOG_CALL, id, stream, a, functions[id].count, sizeof *plane);
    if (entry != NULL) memcpy(log_bytes(entry), plane, sizeof *plane);
    const word *const w = plane->words;
    const bool from_host = (unsigned)w[PLANE_FROM_TYPE] == MEMORY_HOST;
    const word from = from_host ? w[PLANE_FROM_HOST] : w[PLANE_FROM];
    if (host_memory_is_there() && !mappings_have(from) && is_host_memory(from)) look_at_rows(w, from);
    // Which of its addresses count depends on the types of memory.
    if (from_host || (unsigned)w[PLANE_TO_TYPE] == MEMORY_HOST || !is_gpu_memory(w[PLANE_FROM]) ||
        !is_gpu_memory(w[PLANE_TO]))
        not_kept(id);
}

void logged_after(log_entry *before, function_id id, const word *a, const work_stream *stream) {
    // Addresses of host memory are looked for at any time.
    if (!log_is_on() && !host_memory_is_there()) return;
    switch (facts[id].shape) {
        case SHAPE_LAUNCH: keep_launch(id, a, stream); break;
        case SHAPE_TO_HOST:
        case SHAPE_TO_DEVICE:
        case SHAPE_BETWEEN:
        case SHAPE_ANY: keep_copy(before, id, a, stream); break;
        case SHAPE_PLANE: keep_plane(id, a, stream); break;
        case SHAPE_SET:
            if (is_gpu_memory(a[0])) log_add(LOG_CALL, id, stream, a, functions[id].count, 0);
            else not_kept(id);
            break;
        case SHAPE_GRAPH: log_add(LOG_CALL, id, stream, a, functions[id].count, 0); break;
        default: not_kept(id);
    }
}

void logged_not(log_entry *before) {
    if (before != NULL) before->kind = LOG_NOTHING;
}

// In a capture nothing is read, and any memory of the GPU will do.
static log_entry *captured_launch(function_id id, const word *a) {
    const given_launch given = launch_of(id, a);
    logged_launch kept;
    const void *packed;
    uint64_t bytes;
    if (!measure_launch(&given, &kept, &packed, &bytes)) return NULL;
    log_entry *const entry = log_make(LOG_LAUNCH, id, NULL, 0, bytes);
    fill_launch(entry, &given, &kept, packed);
    return entry;
}

static log_entry *captured_plane(function_id id, const word *a) {
    const plane_copy *const plane = POINTER(a[0]);
    const word *const w = plane->words;
    const bool within = (unsigned)w[PLANE_FROM_TYPE] != MEMORY_HOST && (unsigned)w[PLANE_TO_TYPE] != MEMORY_HOST &&
                        !is_host_memory(w[PLANE_FROM]) && !is_host_memory(w[PLANE_TO]);
    log_entry *const entry = within ? log_make(LOG_CALL, id, a, functions[id].count, sizeof *plane) : NULL;
    if (entry != NULL) memcpy(log_bytes(entry), plane, sizeof *plane);
    return entry;
}

log_entry *logged_in_capture(function_id id, const word *a) {
    const size_t count = functions[id].count;
    switch (facts[id].shape) {
        case SHAPE_LAUNCH: return captured_launch(id, a);
        case SHAPE_TO_HOST:
        case SHAPE_TO_DEVICE:
        case SHAPE_BETWEEN:
        case SHAPE_ANY: return !is_host_memory(a[0]) && !is_host_memory(a[1]) ? log_make(LOG_CALL, id, a, count, 0) : NULL;
        case SHAPE_PLANE: return captured_plane(id, a);
        case SHAPE_SET: return !is_host_memory(a[0]) ? log_make(LOG_CALL, id, a, count, 0) : NULL;
        default: return NULL;
    }
}
