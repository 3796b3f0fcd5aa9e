#define _GNU_SOURCE
#include "second/graphs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "second/ahead.h"
#include "second/log.h"
#include "second/logged.h"
#include "second/objects.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/repeat.h"
#include "second/roles.h"
#include "second/structures.h"
#include "second/work.h"

enum { CAPTURE_ACTIVE = 1, MOST_CAPTURES = 64, STREAM_WITHOUT_ORDER = 1, WITH_EXTERNAL = 1 };
// Flags of an instance that change nothing of it elsewhere: what it allocates is freed at a launch, and nodes have priorities. Not one
// that kernels launch by its handle.
enum { HARMLESS_FLAGS = 1 | 8 };
// Of all captures: programs that capture again and again are not followed for ever.
#define MOST_BYTES ((uint64_t)256 << 20)

typedef enum { STEP_WORK, STEP_RECORD, STEP_WAIT } step_kind;

typedef struct step {
    step_kind kind;
    const work_stream *stream;
    word event;
    log_entry *work;
    struct step *next;
} step;

struct recipe {
    const work_stream *origin;  // in which it began
    uint64_t id;       // the driver's, of the capture
    const char *lacks; // a call that cannot be made again; NULL: all can
    step *first, **last;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static recipe *captures[MOST_CAPTURES];
static _Atomic uint64_t bytes;

static bool enter(recipe *made) {
    bool entered = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !entered && i < MOST_CAPTURES; ++i) {
        if (captures[i] != NULL) continue;
        captures[i] = made;
        entered = true;
    }
    pthread_mutex_unlock(&lock);
    if (entered) work_capture_begins();
    return entered;
}

static recipe *leave(const work_stream *origin) {
    recipe *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; found == NULL && i < MOST_CAPTURES; ++i) {
        if (captures[i] == NULL || captures[i]->origin != origin) continue;
        found = captures[i];
        captures[i] = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (found != NULL) work_capture_ends();
    return found;
}

// Zero if the stream is in none, or cannot be asked: the default stream while another one is captured.
static uint64_t capture_id(word stream) {
    int status = 0;
    uint64_t id = 0;
    const mg_result asked = CALL(copies_at_hand(), cuStreamGetCaptureInfo, objects_native(stream), WORD(&status), WORD(&id));
    return asked == MG_SUCCESS && status == CAPTURE_ACTIVE ? id : 0;
}

static uint64_t size_of(const step *s) { return sizeof *s + (s->work != NULL ? s->work->size : 0); }

static void end_recipe(recipe *r) {
    while (r->first != NULL) {
        step *const s = r->first;
        r->first = s->next;
        atomic_fetch_sub(&bytes, size_of(s));
        free(s->work);
        free(s);
    }
    atomic_fetch_sub(&bytes, sizeof *r);
    free(r);
}

mg_result graphs_begin_capture(const driver_copy *copy, function_id id, const word *a, const work_stream *stream) {
    recipe *const made = stream != NULL ? calloc(1, sizeof *made) : NULL;
    if (made != NULL) *made = (recipe){.origin = stream, .last = &made->first};
    // Entered before the driver begins: nothing may ask a stream in between.
    const bool entered = made != NULL && enter(made);
    const mg_result result = copies_call(copy, id, (const word[]){rebuild_translate(a[0]), functions[id].count > 1 ? a[1] : 0}, functions[id].count);
    if (!entered && result == MG_SUCCESS) reasons_hold_for(REASON_graphs, copies_name(id));
    if (!entered || result != MG_SUCCESS) {
        if (entered) leave(stream);
        free(made);
        return result;
    }
    atomic_fetch_add(&bytes, sizeof *made);
    const uint64_t number = capture_id(work_handle(stream));
    pthread_mutex_lock(&lock);
    made->id = number;
    if (number == 0) made->lacks = copies_name(id);
    pthread_mutex_unlock(&lock);
    return result;
}

static void add(recipe *in, step made, const char *what) {
    step *const kept = malloc(sizeof *kept);
    if (kept == NULL || atomic_fetch_add(&bytes, size_of(&made)) > MOST_BYTES) {
        if (kept != NULL) atomic_fetch_sub(&bytes, size_of(&made));
        if (in->lacks == NULL) in->lacks = what;
        free(kept);
        free(made.work);
        return;
    }
    *kept = made;
    *in->last = kept;
    in->last = &kept->next;
}

// Threads that capture into one graph take turns: in another order it would be another one.
static void note(recipe *in, step made, const char *lacks, const char *what) {
    pthread_mutex_lock(&lock);
    if (lacks == NULL) add(in, made, what);
    else if (in->lacks == NULL) in->lacks = lacks;
    pthread_mutex_unlock(&lock);
}

void graphs_note_lack(recipe *in, const char *what) { note(in, (step){STEP_WORK, NULL, 0, NULL, NULL}, what, what); }

void graphs_note_work(recipe *in, function_id id, const word *a, const work_stream *stream) {
    log_entry *const work = logged_in_capture(id, a);
    note(in, (step){STEP_WORK, stream, 0, work, NULL}, work == NULL ? copies_name(id) : NULL, copies_name(id));
}

void graphs_note_record(recipe *in, function_id id, const word *a, const work_stream *stream) {
    const bool external = functions[id].count > 2 && ((unsigned)a[2] & WITH_EXTERNAL) != 0;
    note(in, (step){STEP_RECORD, stream, a[0], NULL, NULL}, external ? copies_name(id) : NULL, copies_name(id));
}

void graphs_note_wait(recipe *in, const word *a, const work_stream *stream) {
    const bool external = ((unsigned)a[2] & WITH_EXTERNAL) != 0;
    note(in, (step){STEP_WAIT, stream, a[1], NULL, NULL}, external ? "cuStreamWaitEvent" : NULL, "cuStreamWaitEvent");
}

// What takes the place of the program's streams and events, which may be gone.
typedef struct place {
    word key, made;
    bool is_event;
    struct place *next;
} place;

static word place_of(place **all, word key, bool is_event) {
    for (const place *p = *all; p != NULL; p = p->next)
        if (p->key == key && p->is_event == is_event) return p->made;
    place *const p = calloc(1, sizeof *p);
    if (p == NULL) return 0;
    *p = (place){key, 0, is_event, *all};
    const mg_result result = is_event ? CALL(copies_at_work(), cuEventCreate, WORD(&p->made), MG_EVENT_DISABLE_TIMING)
                                      : CALL(copies_at_work(), cuStreamCreate, WORD(&p->made), STREAM_WITHOUT_ORDER);
    if (result != MG_SUCCESS) return free(p), 0;
    *all = p;
    return p->made;
}

static void end_places(place *all) {
    while (all != NULL) {
        place *const p = all;
        all = p->next;
        if (p->is_event) CALL(copies_at_work(), cuEventDestroy_v2, p->made);
        else CALL(copies_at_work(), cuStreamDestroy_v2, p->made);
        free(p);
    }
}

// In no capture it would be done at once.
static bool is_captured(word stream) {
    int status = 0;
    return CALL(copies_at_work(), cuStreamIsCapturing, stream, WORD(&status)) == MG_SUCCESS && status == CAPTURE_ACTIVE;
}

static bool take_step(const step *s, place **all) {
    const word stream = place_of(all, WORD(s->stream), false), event = s->kind != STEP_WORK ? place_of(all, s->event, true) : 0;
    if (stream == 0 || (s->kind != STEP_WORK && event == 0)) return false;
    if (s->kind != STEP_WAIT && !is_captured(stream)) return false;
    switch (s->kind) {
        case STEP_WORK: return s->work->kind == LOG_LAUNCH ? repeat_launch(s->work, stream) : repeat_call(s->work, stream);
        case STEP_RECORD: return CALL(copies_at_work(), cuEventRecord, event, stream) == MG_SUCCESS;
        case STEP_WAIT: return CALL(copies_at_work(), cuStreamWaitEvent, stream, event, 0) == MG_SUCCESS;
    }
    return false;
}

static mg_result make_graph(const object *o, word *made) {
    const recipe *const from = o->captured;
    place *all = NULL;
    const word origin = place_of(&all, WORD(from->origin), false);
    bool done = origin != 0 && CALL(copies_at_work(), cuStreamBeginCapture_v2, origin, MG_CAPTURE_RELAXED) == MG_SUCCESS;
    if (done) {
        for (const step *s = from->first; done && s != NULL; s = s->next) done = take_step(s, &all);
        word graph = 0;
        done = CALL(copies_at_work(), cuStreamEndCapture, origin, WORD(&graph)) == MG_SUCCESS && done;
        if (!done && graph != 0) CALL(copies_at_work(), cuGraphDestroy, graph);
        *made = graph;
    }
    end_places(all);
    return done ? MG_SUCCESS : MG_INVALID_VALUE;
}

static mg_result make_instance(const object *o, word *made) {
    word graph = 0;
    const mg_result result = make_graph(o, &graph);
    if (result != MG_SUCCESS) return result;
    const mg_result instantiated = CALL(copies_at_work(), cuGraphInstantiateWithFlags, WORD(made), graph, o->flags);
    CALL(copies_at_work(), cuGraphDestroy, graph);
    return instantiated;
}

static word size_of_rows(word pitch, word width, word height) { return height > 0 ? pitch * (height - 1) + width : 0; }

// As the end of the function's name says it: D8, or D2D8 for rows.
static bool uses_of_set(const char *name, const word *w, list *out) {
    const char *const of = name + strlen("cuMemsetD");
    const bool rows = strncmp(of, "2D", 2) == 0;
    const word bytes = strtoul(rows ? of + 2 : of, NULL, 10) / 8;
    return ahead_use(out, w[0], rows ? size_of_rows(w[1], w[3] * bytes, w[4]) : w[2] * bytes);
}

static bool use_plane(const word *w, list *out, bool to) {
    const word pitch = w[to ? PLANE_TO_PITCH : PLANE_FROM_PITCH];
    const word at = w[to ? PLANE_TO : PLANE_FROM] + w[to ? PLANE_TO_Y : PLANE_FROM_Y] * pitch + w[to ? PLANE_TO_X : PLANE_FROM_X];
    return ahead_use(out, at, size_of_rows(pitch, w[PLANE_WIDTH], w[PLANE_HEIGHT]));
}

// The driver captures no copy of memory that is not there yet, and could take its address for one of the host's. Addresses of
// variables are others in each copy, and known later.
static bool uses_of_step(const step *s, list *out) {
    if (s->kind != STEP_WORK || s->work->kind == LOG_LAUNCH) return true;
    const word *const w = s->work->words;
    const function_id id = (function_id)s->work->function;
    switch (facts[id].shape) {
        case SHAPE_SET: return uses_of_set(copies_name(id), w, out);
        case SHAPE_PLANE: {
            const plane_copy *const plane = log_bytes(s->work);
            return use_plane(plane->words, out, false) && use_plane(plane->words, out, true);
        }
        default: return ahead_use(out, w[0], w[2]) && ahead_use(out, w[1], w[2]);
    }
}

static bool find_uses(const object *o, list *out) {
    bool all = true;
    for (const step *s = o->captured->first; all && s != NULL; s = s->next) all = uses_of_step(s, out);
    return all;
}

void graphs_note_instance(word key, word native, word graph, word flags) {
    const object *const of = objects_find(graph);
    if ((flags & ~(word)HARMLESS_FLAGS) != 0) return reasons_hold_for(REASON_graphs, "flags of an instance");
    // Of one that was not captured, or cannot be made again, there is a reason already: the call by which it was made.
    if (of == NULL || of->captured == NULL) {
        if (!reasons_has(REASON_graphs)) reasons_hold_for(REASON_graphs, "cuGraphInstantiateWithFlags");
        return;
    }
    objects_note(&(object){.key = key, .kind = OBJECT_INSTANCE, .flags = flags, .captured = of->captured, .make = make_instance, .find_uses = find_uses}, native);
}

// A capture that was broken ends here too, with errors of its own; others mean that it is not this call's to end.
static bool has_ended(mg_result result) { return result == MG_SUCCESS || (result >= 901 && result <= 904); }

mg_result graphs_end_capture(const driver_copy *copy, function_id id, const word *a, const work_stream *stream) {
    const mg_result result = copies_call(copy, id, (const word[]){rebuild_translate(a[0]), a[1]}, functions[id].count);
    recipe *const made = has_ended(result) ? leave(stream) : NULL;
    const bool whole = made != NULL && result == MG_SUCCESS && made->lacks == NULL;
    word *const graph = POINTER(a[1]);
    if (whole) {
        const word native = *graph;
        *graph = rebuild_new_key(native);
        objects_note(&(object){.key = *graph, .kind = OBJECT_GRAPH, .captured = made, .make = make_graph}, native);
    }
    if (!whole && result == MG_SUCCESS) reasons_hold_for(REASON_graphs, made != NULL ? made->lacks : copies_name(id));
    if (made != NULL && !whole) end_recipe(made);
    return result;
}

void graphs_stream_ended(const work_stream *stream) {
    recipe *const left = work_is_captured() ? leave(stream) : NULL;
    if (left != NULL) end_recipe(left);
}

bool graphs_are_there(void) { return atomic_load(&bytes) > 0; }

recipe *graphs_capture_of(const work_stream *stream) {
    recipe *found = NULL;
    if (stream == NULL || !work_is_captured()) return NULL;
    const uint64_t id = capture_id(work_handle(stream));
    pthread_mutex_lock(&lock);
    for (size_t i = 0; id != 0 && found == NULL && i < MOST_CAPTURES; ++i)
        if (captures[i] != NULL && captures[i]->id == id) found = captures[i];
    pthread_mutex_unlock(&lock);
    // One into a graph that was there before.
    if (id != 0 && found == NULL) reasons_hold_for(REASON_graphs, "cuStreamBeginCaptureToGraph");
    return found;
}
