// What each of the driver's functions means for the second driver: roles.toml, by way of functions.h.
#pragma once

#include "second/copies.h"
#include "second/reasons.h"

typedef enum { ROLE_ask, ROLE_use, ROLE_work, ROLE_wait, ROLE_make, ROLE_set, ROLE_end, ROLE_own, ROLE_refuse } role;
typedef enum {
    KIND_END,
    KIND_VALUE,
    KIND_CONTEXT,
    KIND_STREAM,
    KIND_EVENT,
    KIND_FUNCTION,
    KIND_MODULE,
    KIND_LIBRARY,
    KIND_GRAPH,
    KIND_EXEC,
    KIND_OUT_CONTEXT,
    KIND_OUT_STREAM,
    KIND_OUT_EVENT,
    KIND_OUT_FUNCTION,
    KIND_OUT_MODULE,
    KIND_OUT_LIBRARY,
    KIND_OUT_GRAPH,
    KIND_OUT_EXEC,
} kind;

typedef struct {
    role role;
    reason reason;  // of ROLE_refuse
    unsigned char count;
    unsigned char kinds[MOST_PARAMETERS];
} function_role;

extern const function_role functions[FUNCTION_COUNT];

// What is asked at each call, made once of that.
enum { NO_STREAM = MOST_PARAMETERS };
typedef enum { SHAPE_OTHER, SHAPE_LAUNCH, SHAPE_TO_DEVICE, SHAPE_TO_HOST, SHAPE_BETWEEN, SHAPE_ANY, SHAPE_PLANE, SHAPE_SET, SHAPE_GRAPH } shape;
typedef struct {
    shape shape;           // what of work a call does
    unsigned char stream;  // which parameter is the stream
    bool per_thread;       // a stream 0 is the thread's own
} function_facts;

extern function_facts facts[FUNCTION_COUNT];

// Before the first call.
void roles_find_facts(void);

// Whether its first word is a CUlaunchConfig.
bool roles_has_config(function_id id);
