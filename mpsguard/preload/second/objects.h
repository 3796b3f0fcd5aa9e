// What the program has made with the first driver and the second one must have, too: streams, events, modules, libraries,
// functions and kernels. Before a takeover it is noted how each was made; afterwards the program's handles are keys.
#pragma once

#include "second/mappings.h"

typedef enum {
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,             // of an image
    OBJECT_LIBRARY,            // of an image
    OBJECT_MODULE_OF_LIBRARY,
    OBJECT_FUNCTION_OF_MODULE,
    OBJECT_KERNEL_OF_LIBRARY,
    OBJECT_FUNCTION_OF_KERNEL,
    OBJECT_GRAPH,
    OBJECT_INSTANCE,           // of a graph
} object_kind;

typedef struct work_stream work_stream;
typedef struct image image;
typedef struct recipe recipe;

// Where the parameters of a kernel are in the room for them.
typedef struct parameter_layout {
    size_t count, size;
    struct { size_t offset, size; } parameters[];
} parameter_layout;

enum { OBJECT_ATTRIBUTES = 8 };

typedef struct object {
    word key;                   // the handle that the program has
    object_kind kind;
    _Atomic(bool) gone;         // destroyed by the program
    unsigned generation;        // of what is of short life: how often this was another one's
    struct object *parent;      // the module, library or kernel
    _Atomic(unsigned) asked_in; // of a module or a library: the copy that was first asked where a variable of it lies; its number plus one
    word flags;                 // of a stream, an event or an instance
    int priority;               // of a stream
    char *name;                 // of a function or a kernel
    image *code;                // of a module or a library
    recipe *captured;           // of a graph or an instance
    mg_result (*make)(const struct object *o, word *made);  // of them, in the copy at hand
    bool (*find_uses)(const struct object *o, list *out);  // of an instance: what memory it names (ahead.h); false if not all is there yet
    _Atomic(bool) not_ahead;    // an attempt ahead of a takeover failed: it is made then
    list uses;                  // of an instance that was made ahead
    _Atomic(word) at[COPIES];   // the handle of each copy, by its number; 0: not made there
    struct { word attribute, value; } attributes[OBJECT_ATTRIBUTES];
    int attribute_count;
    _Atomic(bool) changed;      // an attribute, since the second driver's was made
    _Atomic(word) cache;        // preference, plus one; 0: not set
    _Atomic(parameter_layout *) layout;  // of a function or a kernel, once it was launched
    work_stream *recorded_in;   // of an event: where, and behind how much work; NULL: not known
    uint64_t recorded_behind;
    uint64_t records_begun, records_ended;
    struct object *next;        // of its bucket, newest first
    struct object *older;       // of all
} object;

// Notes an object as `made` has it (key, kind, parent, flags, priority, name, code, captured, make, find_uses), which the copy at hand calls `native`,
// in place of one with the same key: drivers give the handles of what is destroyed to others. NULL if there is no host memory (a reason then).
object *objects_note(const object *made, word native);

// The object of that handle, or NULL.
object *objects_find(word key);

// What the copy at hand calls a stream of the program: those are made at the takeover. What is not known stays.
word objects_native(word key);

// A function or a kernel that was noted before: itself, or what was found since by another way, has its handle now and is the same one; NULL
// if that is another one's, or no one's.
object *objects_still(object *function);

// What a handle stands for before a call that destroys it; `object` is NULL if that is not known. As soon as the driver has
// destroyed it, another thread may be given the same handle for an object of its own.
typedef struct {
    object *object;
    unsigned generation;
} objects_mark;
objects_mark objects_mark_of(word key);

// The program destroyed it, and with it what was found in it.
void objects_forget(objects_mark mark);

// An attribute of a function or a kernel; the last value counts. `same`: it was set to that before. False if there is no such object.
bool objects_set_attribute(word key, word attribute, word value, bool *same);

// A preference of one. False if there is no such object.
bool objects_set_cache(word key, word preference);

// What an object has by now; returns how many.
int objects_attributes(object *o, word attributes[OBJECT_ATTRIBUTES], word values[OBJECT_ATTRIBUTES]);

// Around a call that records an event, and around one that waits for it. What a wait shows is known only if no other call
// recorded the event meanwhile.
typedef struct {
    object *event;
    uint64_t turn;
    bool alone;
    work_stream *stream;
    uint64_t behind;
} objects_record;
objects_record objects_record_begin(word event);
void objects_record_end(const objects_record *record, bool recorded, work_stream *stream, uint64_t behind);
objects_record objects_wait_begin(word event);
bool objects_wait_end(const objects_record *record);

// Counts what is noted, set or ended.
word objects_changes(void);

// Around the making of an object of short life in the copy at work, ahead of a takeover: before it, what it is now, for the program may destroy
// it meanwhile and be given its handle for another one. False if none is to be made.
bool objects_make_begin(object *o, object *now);

// After it: notes that copy's handle, and the memory that it names; or (0) that it cannot be made. False, with nothing noted, if
// that is not what the program has by now.
bool objects_make_end(object *o, const object *now, word made, list *uses);

// The newest one first; follow `older`.
object *objects_newest(void);
