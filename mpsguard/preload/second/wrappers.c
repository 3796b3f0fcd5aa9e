#define _GNU_SOURCE
#include "second/wrappers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "second/copies.h"
#include "second/epoch.h"
#include "second/graphs.h"
#include "second/host_memory.h"
#include "second/host_reads.h"
#include "second/images.h"
#include "second/limits.h"
#include "second/log.h"
#include "second/logged.h"
#include "second/mappings.h"
#include "second/memory.h"
#include "second/memory_pools.h"
#include "second/objects.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/roles.h"
#include "second/room.h"
#include "second/structures.h"
#include "second/work.h"
#include "second/takeover.h"
#include "second/translate.h"
#include "second/variables.h"

enum { POINTER_CONTEXT = 1 };

// Not a driver's result: the call was turned away, because a takeover is under way.
enum { TURNED_AWAY = -1 };

// Once it is known: calls go to the first copy for ever, or they are noted; or this is a child of a process that has noted
// some. CUDA itself is of no use after a fork, and a lock here may be one that no thread will ever let go of.
static _Atomic enum { UNKNOWN, PLAIN, NOTED, CHILD } state;

static void in_child(void) { atomic_store_explicit(&state, CHILD, memory_order_relaxed); }

static bool find(void) {
    if (!copies_find_first(takeover_mode() == SECOND_OFF)) return false;
    roles_find_facts();
    if (takeover_mode() != SECOND_OFF) pthread_atfork(NULL, NULL, in_child);
    atomic_store_explicit(&state, takeover_mode() == SECOND_OFF ? PLAIN : NOTED, memory_order_release);
    return true;
}

// Asked again until there is one: a program may load it late.
static bool have_driver(void) {
    static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load_explicit(&state, memory_order_acquire) != UNKNOWN) return true;
    pthread_mutex_lock(&finding);
    const bool found = atomic_load_explicit(&state, memory_order_relaxed) != UNKNOWN || find();
    pthread_mutex_unlock(&finding);
    return found;
}

bool wrappers_wanted(void) { return takeover_mode() != SECOND_OFF && have_driver(); }

// The stream of a call that enqueues work, or waits for a stream; the default one if it names none.
static work_stream *stream_of(function_id id, const word *a) {
    word handle = facts[id].stream != NO_STREAM ? a[facts[id].stream] : 0;
    if (roles_has_config(id) && a[0] != 0) handle = ((const launch_config *)POINTER(a[0]))->stream;
    return work_stream_of(handle, facts[id].per_thread);
}

// Or what may hold another handle.
static bool has_event(const launch_config *config) {
    const launch_attribute *const all = config->attributes;
    for (unsigned i = 0; i < config->attribute_count; ++i)
        if (all[i].id == ATTRIBUTE_PROGRAMMATIC_EVENT || all[i].id == ATTRIBUTE_COMPLETION_EVENT ||
            all[i].id > ATTRIBUTE_LAST_KNOWN)
            return true;
    return false;
}

// A call that enqueues work, or copies to the host: it begins while no takeover is under way, and what it does is kept. Here and in what
// follows, `a` are the program's words, by which all is noted, and `w` those of the copy.
static mg_result keep(const driver_copy *copy, function_id id, const word *a, const word *w, work_stream *stream, bool enqueues) {
    const bool logged = epoch_is_wanted();
    if (!work_begin(copy, stream)) return TURNED_AWAY;
    recipe *const captured = graphs_capture_of(stream);
    if (captured != NULL) {
        const mg_result result = copies_call(copy, id, w, functions[id].count);
        if (result == MG_SUCCESS) graphs_note_work(captured, id, a, stream);
        work_end(stream);
        return result;
    }
    log_entry *const before = logged ? logged_before(id, a) : NULL;
    const mg_result result = copies_call(copy, id, w, functions[id].count);
    if (result == MG_SUCCESS) {
        if (enqueues) work_count(stream);
        if (logged) logged_after(before, id, a, stream);
        // Some that have no stream wait for what is before them.
        if (logged && facts[id].stream == NO_STREAM) host_reads_look();
    } else {
        logged_not(before);
    }
    work_end(stream);
    return result;
}

static mg_result enqueue(const driver_copy *copy, function_id id, const word *a, const word *w) {
    if (roles_has_config(id) && a[0] != 0 && has_event(POINTER(a[0]))) reasons_hold(REASON_launch_events);
    return keep(copy, id, a, w, stream_of(id, a), true);
}

// What is known to be over after a call that waits.
static mg_result wait_for(const driver_copy *copy, function_id id, const word *a, const word *w) {
    const size_t count = functions[id].count;
    if (id == FUNCTION_cuCtxSynchronize || id == FUNCTION_cuCtxSynchronize_v2) {
        work_mark mark = work_mark_all();
        const mg_result result = copies_call(copy, id, w, count);
        if (result == MG_SUCCESS) work_mark_is_over(&mark);
        work_mark_free(&mark);
        return result;
    }
    if (functions[id].kinds[0] == KIND_EVENT) {
        const objects_record record = objects_wait_begin(a[0]);
        const mg_result result = copies_call(copy, id, w, count);
        if (result == MG_SUCCESS && objects_wait_end(&record)) work_is_over(record.stream, record.behind);
        return result;
    }
    work_stream *const stream = stream_of(id, a);
    const uint64_t enqueued = work_enqueued(stream);
    // A copy to the host is over itself when it returns, and changes nothing on the GPU. One of nothing waits for nothing, and one
    // within the GPU, which this function makes as well, not for itself.
    const bool copies = facts[id].shape == SHAPE_TO_HOST, within = copies && mappings_have(a[0]);
    const bool waits = !copies || (!within && a[2] != 0 && mappings_have(a[1]));
    const mg_result result = copies ? keep(copy, id, a, w, stream, within) : copies_call(copy, id, w, count);
    if (result == MG_SUCCESS && waits) work_is_over(stream, enqueued);
    return result;
}

static mg_result wait_and_tell(const driver_copy *copy, function_id id, const word *a, const word *w) {
    const mg_result result = wait_for(copy, id, a, w);
    if (result != MG_SUCCESS || !epoch_is_wanted()) return result;
    // What the program has not been told may be waited for again.
    if (!work_begin_change(copy)) return TURNED_AWAY;
    host_reads_look();
    work_end_change();
    takeover_at_wait();
    return result;
}

static void note_child(word key, word native, object_kind what, word parent, const char *name) {
    object *const of = objects_find(parent);
    // Without what it was found in it cannot be found again.
    if (of == NULL) reasons_hold_for(REASON_unknown, name != NULL ? name : "module");
    else objects_note(&(object){.key = key, .kind = what, .parent = of, .name = (char *)(uintptr_t)name}, native);
}

static void note_image(word key, word native, object_kind what, const void *code, word count, const int *options, const word *values) {
    image *const kept = images_keep(code, count, options, values);
    objects_note(&(object){.key = key, .kind = what, .code = kept}, native);
}

// The copy has made it: the program gets its key.
static void note_made(const driver_copy *copy, function_id id, const word *a) {
    word *const out = POINTER(a[0]);
    const word native = *out;
    // Found again, it is the one that the program has.
    if (copy->number != 0 && (id == FUNCTION_cuModuleGetFunction || id == FUNCTION_cuLibraryGetKernel)) rebuild_found(a[1], POINTER(a[2]));
    else if (copy->number != 0 && (id == FUNCTION_cuLibraryGetModule || id == FUNCTION_cuKernelGetFunction)) rebuild_found(a[1], NULL);
    const word key = copy->number == 0 ? native : rebuild_new_key(native);
    *out = key;
    switch (id) {
        case FUNCTION_cuStreamCreate:
        case FUNCTION_cuStreamCreateWithPriority:
            // One that was destroyed had the same handle, and its thread has not come to say so yet.
            work_stream_ended(key);
            objects_note(&(object){.key = key, .kind = OBJECT_STREAM, .flags = (unsigned)a[1],
                                   .priority = id == FUNCTION_cuStreamCreateWithPriority ? (int)a[2] : 0}, native);
            return;
        case FUNCTION_cuEventCreate:
            objects_note(&(object){.key = key, .kind = OBJECT_EVENT, .flags = (unsigned)a[1]}, native);
            return;
        case FUNCTION_cuModuleLoadData:
        case FUNCTION_cuModuleLoadFatBinary: note_image(key, native, OBJECT_MODULE, POINTER(a[1]), 0, NULL, NULL); return;
        case FUNCTION_cuModuleLoadDataEx:
            note_image(key, native, OBJECT_MODULE, POINTER(a[1]), (unsigned)a[2], POINTER(a[3]), POINTER(a[4]));
            return;
        case FUNCTION_cuLibraryLoadData:
            note_image(key, native, OBJECT_LIBRARY, POINTER(a[1]), (unsigned)a[4], POINTER(a[2]), POINTER(a[3]));
            return;
        case FUNCTION_cuModuleGetFunction: note_child(key, native, OBJECT_FUNCTION_OF_MODULE, a[1], POINTER(a[2])); return;
        case FUNCTION_cuLibraryGetKernel: note_child(key, native, OBJECT_KERNEL_OF_LIBRARY, a[1], POINTER(a[2])); return;
        case FUNCTION_cuLibraryGetModule: note_child(key, native, OBJECT_MODULE_OF_LIBRARY, a[1], NULL); return;
        case FUNCTION_cuGraphInstantiateWithFlags: graphs_note_instance(key, native, a[1], a[2]); return;
        case FUNCTION_cuKernelGetFunction: note_child(key, native, OBJECT_FUNCTION_OF_KERNEL, a[1], NULL); return;
        // The module of a function; that of a library may not have been asked for yet.
        case FUNCTION_cuFuncGetModule: {
            const object *of = objects_find(a[1]);
            while (of != NULL && of->parent != NULL) of = of->parent;
            if (of != NULL && of->kind == OBJECT_LIBRARY) note_child(key, native, OBJECT_MODULE_OF_LIBRARY, of->key, NULL);
            else if (objects_find(key) == NULL) reasons_hold_for(REASON_unknown, copies_name(id));
            return;
        }
        default: reasons_hold(REASON_unknown);
    }
}

static void note_set(function_id id, const word *a) {
    bool known = true, same = true;
    switch (id) {
        case FUNCTION_cuFuncSetAttribute: known = objects_set_attribute(a[0], (unsigned)a[1], (unsigned)a[2], &same); break;
        case FUNCTION_cuKernelSetAttribute: known = objects_set_attribute(a[2], (unsigned)a[0], (unsigned)a[1], &same); break;
        case FUNCTION_cuFuncSetCacheConfig:
        case FUNCTION_cuKernelSetCacheConfig:
            known = objects_set_cache(a[0], (unsigned)a[1]);
            break;
        default: break;  // a wait of a stream for an event is over when both are idle
    }
    if (!known) reasons_hold_for(REASON_unknown, copies_name(id));
    // Kernels that were launched before would be repeated with it. What they may have, and what is preferred, changes nothing in them.
    const unsigned attribute = (unsigned)a[id == FUNCTION_cuKernelSetAttribute ? 0 : 1];
    const bool limits = attribute <= FUNCTION_CARVEOUT || attribute == FUNCTION_LARGE_CLUSTERS || attribute == FUNCTION_CLUSTER_POLICY;
    if (same || limits) return;
    char what[64];
    snprintf(what, sizeof what, "%s %u", copies_name(id), attribute);
    log_break(REASON_unlogged, what);
    if (graphs_are_there()) reasons_hold_for(REASON_graphs, what);
}

// The file may be another one, or gone, when its code is needed again: what is read of it is what is loaded.
static mg_result load_file(const driver_copy *copy, function_id id, const word *a, const word *w) {
    const function_id by = id == FUNCTION_cuModuleLoad ? FUNCTION_cuModuleLoadData : FUNCTION_cuLibraryLoadData;
    void *const bytes = images_read(POINTER(a[1]));
    word words[MOST_PARAMETERS];
    memcpy(words, w, functions[id].count * sizeof *words);
    words[1] = WORD(bytes);
    const mg_result result = bytes != NULL ? copies_call(copy, by, words, functions[by].count) : copies_call(copy, id, w, functions[id].count);
    if (result == MG_SUCCESS && bytes != NULL) note_made(copy, by, words);
    else if (result == MG_SUCCESS) reasons_hold_for(REASON_modules_from_files, copies_name(id));
    free(bytes);
    return result;
}

static mg_result make_or_set(const driver_copy *copy, function_id id, const word *a, const word *w) {
    if (id == FUNCTION_cuModuleLoad || id == FUNCTION_cuLibraryLoadFromFile) return load_file(copy, id, a, w);
    const bool sets = functions[id].role == ROLE_set, records = sets && functions[id].kinds[0] == KIND_EVENT;
    const bool waits = sets && functions[id].kinds[0] == KIND_STREAM;
    work_stream *const stream = records || waits ? stream_of(id, a) : NULL;
    recipe *const recorded = records ? graphs_capture_of(stream) : NULL;
    const uint64_t behind = work_enqueued(stream);
    const objects_record record = records ? objects_record_begin(a[0]) : (objects_record){0};
    const mg_result result = copies_call(copy, id, w, functions[id].count);
    if (records) objects_record_end(&record, result == MG_SUCCESS && recorded == NULL, stream, behind);
    if (result != MG_SUCCESS) return result;
    if (recorded != NULL) graphs_note_record(recorded, id, a, stream);
    // By a wait for what is captured a stream comes into the capture.
    recipe *const waited = waits ? graphs_capture_of(stream) : NULL;
    if (waited != NULL) graphs_note_wait(waited, a, stream);
    if (sets) note_set(id, a);
    else note_made(copy, id, a);
    return result;
}

// What was not made in this copy is not there to be ended. The memory of a graph may be gone, and then it could not even be made.
static mg_result end_native(const driver_copy *copy, function_id id, const word *a, const object *of) {
    const word native = copy->number == 0 || of == NULL ? a[0] : atomic_load_explicit(&of->at[copy->number], memory_order_acquire);
    if (native == 0) return MG_SUCCESS;
    if (copy->number != 0) rebuild_forget(native);
    return copies_call(copy, id, (const word[]){native}, 1);
}

static mg_result end(const driver_copy *copy, function_id id, const word *a) {
    const objects_mark mark = objects_mark_of(a[0]);
    // What was launched of it cannot be launched again.
    const kind what = functions[id].kinds[0];
    if ((what == KIND_MODULE || what == KIND_LIBRARY) && graphs_are_there()) reasons_hold_for(REASON_graphs, copies_name(id));
    const work_stream *const stream = what == KIND_STREAM ? work_stream_of(a[0], false) : NULL;
    if (what == KIND_MODULE || what == KIND_LIBRARY || what == KIND_EXEC)
        log_break(REASON_unlogged, copies_name(id));
    const mg_result result = end_native(copy, id, a, mark.object);
    if (result != MG_SUCCESS) return result;
    if (what == KIND_STREAM) {
        graphs_stream_ended(stream);
        work_stream_ended(a[0]);
    }
    if (what == KIND_LIBRARY) variables_forget(a[0]);
    objects_forget(mark);
    return result;
}

// All that was made ends with it, without a call for each.
static void note_end_of_context(function_id id, const word *a) {
    const bool released = id == FUNCTION_cuDevicePrimaryCtxRelease || id == FUNCTION_cuDevicePrimaryCtxRelease_v2;
    bool ends = id == FUNCTION_cuDevicePrimaryCtxReset || id == FUNCTION_cuDevicePrimaryCtxReset_v2;
    unsigned flags = 0;
    int active = 0;
    if (released)
        ends = CALL(copies_at_hand(), cuDevicePrimaryCtxGetState, a[0], WORD(&flags), WORD(&active)) != MG_SUCCESS || active == 0;
    if (ends) reasons_hold_for(REASON_several_contexts, copies_name(id));
}

static mg_result ask_at_hand(const driver_copy *copy, function_id id, const word *a) {
    word words[MOST_PARAMETERS];
    translate_room room;
    if (!translate_words(id, a, words, &room)) return rebuild_error();
    const mg_result result = copies_call(copy, id, words, functions[id].count);
    if (result == MG_SUCCESS) translate_back(id, a);
    return result;
}

// Contexts: the program keeps the first driver's, and each thread has that of the copy at hand current in its place.
static mg_result contexts(const driver_copy *copy, function_id id, const word *a) {
    const bool later = copy->number != 0;
    mg_result result;
    if (later && id == FUNCTION_cuDevicePrimaryCtxRetain) {
        if ((mg_device)a[1] != (mg_device)takeover_device()) return MG_NOT_SUPPORTED;
        *(word *)POINTER(a[0]) = takeover_context();
        return MG_SUCCESS;
    }
    if (later && (id == FUNCTION_cuDevicePrimaryCtxRelease_v2 || id == FUNCTION_cuDevicePrimaryCtxRelease ||
                  id == FUNCTION_cuDevicePrimaryCtxSetFlags || id == FUNCTION_cuDevicePrimaryCtxSetFlags_v2))
        return MG_SUCCESS;
    if (later && (id == FUNCTION_cuDevicePrimaryCtxReset_v2 || id == FUNCTION_cuDevicePrimaryCtxReset)) {
        result = copies_call(copy, id, a, 1);
        if (result == MG_SUCCESS) reasons_hold_for(REASON_several_contexts, copies_name(id));
        return result;
    }
    if (later && functions[id].count >= 2 && functions[id].kinds[0] == KIND_STREAM) {
        *(word *)POINTER(a[1]) = takeover_context();
        if (functions[id].count > 2 && a[2] != 0) *(word *)POINTER(a[2]) = 0;
        return MG_SUCCESS;
    }
    // The first driver knows what is current in each thread after the fault, too (measured with 580).
    result = copies_call(&first_copy, id, a, functions[id].count);
    if (result != MG_SUCCESS && later && takeover_was_move()) return ask_at_hand(copy, id, a);
    if (result != MG_SUCCESS) return result;
    if (!later) note_end_of_context(id, a);
    if (id == FUNCTION_cuDevicePrimaryCtxRetain) takeover_begin(*(const word *)POINTER(a[0]), (int)a[1]);
    if (later && id != FUNCTION_cuCtxGetCurrent) {
        word current = 0;
        result = CALL(&first_copy, cuCtxGetCurrent, WORD(&current));
        if (result == MG_SUCCESS) result = CALL(copy, cuCtxSetCurrent, current != 0 ? rebuild_translate(current) : 0);
    }
    return result;
}

static mg_result pointer_attributes(const driver_copy *copy, function_id id, const word *a) {
    const mg_result result = copies_call(copy, id, a, functions[id].count);
    if (result != MG_SUCCESS || copy->number == 0) return result;
    if (id == FUNCTION_cuPointerGetAttribute) {
        if ((int)a[1] == POINTER_CONTEXT) *(word *)POINTER(a[0]) = rebuild_key_of(*(const word *)POINTER(a[0]));
        return result;
    }
    const int *const attributes = POINTER(a[1]);
    void *const *const values = POINTER(a[2]);
    for (unsigned i = 0; i < (unsigned)a[0]; ++i)
        if (attributes[i] == POINTER_CONTEXT) *(word *)values[i] = rebuild_key_of(*(const word *)values[i]);
    return result;
}

static mg_result capture(const driver_copy *copy, function_id id, const word *a) {
    const bool ends = id == FUNCTION_cuStreamEndCapture || id == FUNCTION_cuStreamEndCapture_ptsz;
    const work_stream *const stream = stream_of(id, a);
    return ends ? graphs_end_capture(copy, id, a, stream) : graphs_begin_capture(copy, id, a, stream);
}

static mg_result own(const driver_copy *copy, function_id id, const word *a) {
    switch (id) {
        case FUNCTION_cuInit: return copies_call(&first_copy, id, a, 1);
        case FUNCTION_cuMemAddressReserve: return memory_reserve(copy, a);
        case FUNCTION_cuMemAddressFree: return memory_unreserve(copy, a);
        case FUNCTION_cuMemCreate: return memory_create(copy, a);
        case FUNCTION_cuMemRelease: return memory_release(copy, a);
        case FUNCTION_cuMemRetainAllocationHandle: return memory_retain(copy, a);
        case FUNCTION_cuMemExportToShareableHandle: {
            const mg_result result = memory_export(copy, a);
            // What the preload exports to the guard is read there, and not written.
            if (result == MG_SUCCESS && !process_inside) reasons_hold_for(REASON_shared_with_others, copies_name(id));
            return result;
        }
        case FUNCTION_cuMemGetAllocationPropertiesFromHandle: return memory_properties(copy, a);
        case FUNCTION_cuMemImportFromShareableHandle: return memory_import(copy, a);
        case FUNCTION_cuMemMap: return memory_map(copy, a);
        case FUNCTION_cuMemUnmap: return memory_unmap(copy, a);
        case FUNCTION_cuMemSetAccess: return memory_set_access(copy, a);
        case FUNCTION_cuMemAllocAsync:
        case FUNCTION_cuMemAllocAsync_ptsz:
        case FUNCTION_cuMemAllocFromPoolAsync:
        case FUNCTION_cuMemAllocFromPoolAsync_ptsz:
        case FUNCTION_cuMemFreeAsync:
        case FUNCTION_cuMemFreeAsync_ptsz:
        case FUNCTION_cuMemPoolGetAttribute:
        case FUNCTION_cuMemPoolSetAttribute:
        case FUNCTION_cuMemPoolTrimTo: return memory_pools_call(copy, id, a);
        case FUNCTION_cuMemAlloc_v2: return memory_allocate_plain(copy, a);
        case FUNCTION_cuMemAllocPitch_v2: return memory_allocate_pitch_plain(copy, a);
        case FUNCTION_cuMemFree_v2: return memory_free_plain(copy, a);
        case FUNCTION_cuMemAllocHost_v2:
        case FUNCTION_cuMemHostAlloc: return host_memory_allocate(copy, id, a);
        case FUNCTION_cuMemHostGetFlags: return host_memory_flags(copy, a);
        case FUNCTION_cuMemFreeHost: return host_memory_free(copy, a);
        case FUNCTION_cuMemHostRegister_v2: return host_memory_register(copy, a);
        case FUNCTION_cuMemHostUnregister: return host_memory_unregister(copy, a);
        case FUNCTION_cuPointerGetAttribute:
        case FUNCTION_cuPointerGetAttributes: return pointer_attributes(copy, id, a);
        case FUNCTION_cuCtxSetLimit: {
            const mg_result result = copies_call(copy, id, a, 2);
            if (result != MG_SUCCESS) return result;
            limits_note(a[0], a[1]);
            log_break(REASON_unlogged, copies_name(id));
            return result;
        }
        case FUNCTION_cuStreamBeginCapture:
        case FUNCTION_cuStreamBeginCapture_ptsz:
        case FUNCTION_cuStreamBeginCapture_v2:
        case FUNCTION_cuStreamBeginCapture_v2_ptsz:
        case FUNCTION_cuStreamEndCapture:
        case FUNCTION_cuStreamEndCapture_ptsz: return capture(copy, id, a);
        case FUNCTION_cuEventElapsedTime:
        case FUNCTION_cuEventElapsedTime_v2: {
            return copies_call(copy, id, (const word[]){a[0], rebuild_translate(a[1]), rebuild_translate(a[2])}, 3);
        }
        case FUNCTION_cuModuleGetGlobal_v2:
        case FUNCTION_cuLibraryGetGlobal: {
            const word native = rebuild_translate(a[2]);
            return native != 0 || a[2] == 0 ? variables_ask(copy, id, a, native) : rebuild_error();
        }
        // With addresses of 32 bits.
        case FUNCTION_cuModuleGetGlobal:
        case FUNCTION_cuMemAlloc:
        case FUNCTION_cuMemAllocPitch:
        case FUNCTION_cuMemFree:
        case FUNCTION_cuMemAllocHost:
        case FUNCTION_cuMemHostRegister:
            reasons_hold(REASON_old_launches);
            return copies_call(copy, id, a, functions[id].count);
        default: return contexts(copy, id, a);
    }
}

static mg_result refused(const driver_copy *copy, function_id id, const word *a, const word *w) {
    const mg_result result = copies_call(copy, id, w, functions[id].count);
    if (result != MG_SUCCESS) return result;
    reasons_hold_for(functions[id].reason, copies_name(id));
    if (copy->number != 0) translate_back(id, a);
    return result;
}

// A takeover waits for calls that change what it carries over.
static mg_result counted(const driver_copy *copy, function_id id, const word *a, const word *w) {
    if (!work_begin_change(copy)) return TURNED_AWAY;
    const mg_result result = functions[id].role == ROLE_own      ? own(copy, id, a)
                             : functions[id].role == ROLE_end    ? end(copy, id, a)
                             : functions[id].role == ROLE_refuse ? refused(copy, id, a, w)
                                                                 : make_or_set(copy, id, a, w);
    work_end_change();
    return result;
}

// What was first used after a takeover would have handles of the program in a structure, or of a kind that is not translated.
static bool is_denied_later(function_id id, const word *a) {
    if (roles_has_config(id) && a[0] != 0) return has_event(POINTER(a[0]));
    if (functions[id].role != ROLE_refuse) return false;
    switch (functions[id].reason) {
        case REASON_several_contexts:
        case REASON_several_devices:
        case REASON_driver_checkpoints:
        case REASON_enumerated_functions:
        case REASON_memory_pools:
        case REASON_unknown: return true;
        case REASON_graphs: return strstr(copies_name(id), "Node") != NULL;
        default: return strncmp(copies_name(id), "cuMemcpy3DPeer", 14) == 0;
    }
}

// Functions of the driver of which nothing is known here. The runtime asks for all that its release knows; these it does not
// use by itself.
void wrappers_note_unknown(const char *symbol) {
    static const char *const harmless[] = {"cuGetProcAddress", "cuGetExportTable", "cuProfiler", "cuGL", "cuVDPAU", "cuEGL",
                                           "cuGraphicsGL", "cuGraphicsVDPAU", "cuGraphicsEGL", "cuGraphicsResource",
                                           "cuIpcOpen", "cuEventCreateFromEGLSync"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; ++i)
        if (strncmp(symbol, harmless[i], strlen(harmless[i])) == 0) return;
    // Another variant of one that only asks.
    const size_t length = strlen(symbol);
    for (size_t i = 0; i < FUNCTION_COUNT; ++i) {
        const char *const name = copies_name((function_id)i);
        const bool same = strncmp(name, symbol, length) == 0 && (name[length] == '\0' || name[length] == '_');
        if (same && (functions[i].role == ROLE_ask || functions[i].role == ROLE_use)) return;
    }
    reasons_hold_for(REASON_unknown, symbol);
}

// Whether the first driver is to be asked: it knows what it has made.
static bool is_asked_of_first(function_id id, const word *a) {
    if (functions[id].role != ROLE_ask) return false;
    // Whether there is a primary context: the first one may say that its has ended.
    if (id == FUNCTION_cuDevicePrimaryCtxGetState && takeover_was_move()) return false;
    for (size_t i = 0; i < functions[id].count; ++i)
        if (functions[id].kinds[i] == KIND_CONTEXT && a[i] != 0 && a[i] != takeover_context()) return false;
    return true;
}

static mg_result call(const driver_copy *copy, function_id id, const word *a, const word *w) {
    switch (functions[id].role) {
        case ROLE_work: return enqueue(copy, id, a, w);
        case ROLE_wait: return wait_and_tell(copy, id, a, w);
        case ROLE_own:
        case ROLE_make:
        case ROLE_set:
        case ROLE_end:
        case ROLE_refuse: return counted(copy, id, a, w);
        default:
            if ((id == FUNCTION_cuMemGetInfo_v2 || id == FUNCTION_cuMemGetInfo) && !process_inside) room_is_asked();
            return copies_call(copy, id, w, functions[id].count);
    }
}

// With a copy in which the program's handles are others.
static mg_result call_later(driver_copy *copy, function_id id, const word *a) {
    word w[MOST_PARAMETERS];
    translate_room room;
    if (is_denied_later(id, a)) return MG_NOT_SUPPORTED;
    if (is_asked_of_first(id, a)) {
        const mg_result asked = copies_call(&first_copy, id, a, functions[id].count);
        if (asked == MG_SUCCESS || !takeover_was_move()) return asked;
    }
    takeover_enter();
    // These have words of other kinds, or of what was not made.
    if (functions[id].role == ROLE_own || functions[id].role == ROLE_end) return call(copy, id, a, a);
    if (!translate_words(id, a, w, &room)) return rebuild_error();
    const mg_result result = call(copy, id, a, w);
    const bool gives = functions[id].role == ROLE_ask || functions[id].role == ROLE_use;
    if (!gives || result != MG_SUCCESS) return result;
    // What was done for want of room was with another copy.
    copies_work_with(copy);
    translate_back(id, a);
    return result;
}

static mg_result wrapper(function_id id, const word *a) {
    int known = atomic_load_explicit(&state, memory_order_acquire);
    if (known == UNKNOWN) {
        if (!have_driver()) return MG_NOT_INITIALIZED;
        known = atomic_load_explicit(&state, memory_order_acquire);
    }
    if (known == CHILD && takeover_happened()) return MG_NOT_INITIALIZED;
    if (known == PLAIN || known == CHILD) return copies_call(&first_copy, id, a, functions[id].count);
    // What a driver calls of itself by an exported name is its own affair.
    static __thread driver_copy *inside __attribute__((tls_model("initial-exec")));
    if (inside != NULL) return copies_call(inside, id, a, functions[id].count);
    for (;;) {
        driver_copy *const copy = inside = copies_at_hand();
        mg_result result;
        if (copy->number == 0) {
            result = call(copy, id, a, a);
        } else {
            copies_work_with(copy);
            result = call_later(copy, id, a);
            copies_work_with(NULL);
        }
        inside = NULL;
        if (result == TURNED_AWAY) {
            takeover_wait();
            continue;
        }
        // It was under way while the program went over: what it says is of the driver that was left.
        if (result != MG_SUCCESS && copies_at_hand() != copy) continue;
        // Spare memory is not worth a call that fails.
        if (result == MG_OUT_OF_MEMORY && room_is_made()) continue;
        if (result == MG_SUCCESS || !copies_is_loss(result) || !takeover_after(copy)) return result;
    }
}

// One function for each of the driver's, under its own name where no hook of the preload has that.
#define PARAMETERS_0 void
#define PARAMETERS_1 word a0
#define PARAMETERS_2 PARAMETERS_1, word a1
#define PARAMETERS_3 PARAMETERS_2, word a2
#define PARAMETERS_4 PARAMETERS_3, word a3
#define PARAMETERS_5 PARAMETERS_4, word a4
#define PARAMETERS_6 PARAMETERS_5, word a5
#define PARAMETERS_7 PARAMETERS_6, word a6
#define PARAMETERS_8 PARAMETERS_7, word a7
#define PARAMETERS_9 PARAMETERS_8, word a8
#define PARAMETERS_10 PARAMETERS_9, word a9
#define PARAMETERS_11 PARAMETERS_10, word a10
#define PARAMETERS_12 PARAMETERS_11, word a11
#define PARAMETERS_13 PARAMETERS_12, word a12
#define PARAMETERS_14 PARAMETERS_13, word a13
#define PARAMETERS_15 PARAMETERS_14, word a14
#define PARAMETERS_16 PARAMETERS_15, word a15
#define WORDS_0 0
#define WORDS_1 a0
#define WORDS_2 WORDS_1, a1
#define WORDS_3 WORDS_2, a2
#define WORDS_4 WORDS_3, a3
#define WORDS_5 WORDS_4, a4
#define WORDS_6 WORDS_5, a5
#define WORDS_7 WORDS_6, a6
#define WORDS_8 WORDS_7, a7
#define WORDS_9 WORDS_8, a8
#define WORDS_10 WORDS_9, a9
#define WORDS_11 WORDS_10, a10
#define WORDS_12 WORDS_11, a11
#define WORDS_13 WORDS_12, a12
#define WORDS_14 WORDS_13, a13
#define WORDS_15 WORDS_14, a14
#define WORDS_16 WORDS_15, a15

#define PLACE_HOOKED(name, count)
#define PLACE_EXPORTED(name, count)                                   \
    __attribute__((visibility("default"), alias("second_" #name)))    \
    mg_result name(PARAMETERS_##count);

#define DRIVER_FUNCTION(name, role, reason, place, count, ...)        \
    mg_result second_##name(PARAMETERS_##count);                      \
    mg_result second_##name(PARAMETERS_##count) {                     \
        const word words[] = {WORDS_##count};                         \
        return wrapper(FUNCTION_##name, words);                       \
    }                                                                 \
    PLACE_##place(name, count)
#include "second/functions.h"
#undef DRIVER_FUNCTION

static void *const wrappers[FUNCTION_COUNT] = {
#define DRIVER_FUNCTION(name, ...) (void *)second_##name,
#include "second/functions.h"
#undef DRIVER_FUNCTION
};

void *wrappers_named(const char *name) {
    for (size_t i = 0; i < FUNCTION_COUNT; ++i)
        if (strcmp(copies_name((function_id)i), name) == 0) return wrappers[i];
    return NULL;
}

void *wrappers_of(const void *function) {
    if (function == NULL || !have_driver()) return NULL;
    for (size_t i = 0; i < FUNCTION_COUNT; ++i)
        if (first_copy.function[i] == function) return wrappers[i];
    return NULL;
}
