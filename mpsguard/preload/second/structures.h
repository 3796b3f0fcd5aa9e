// Layouts of the driver's structures, as far as they are looked at here (CUDA 13's header).
#pragma once

#include "second/copies.h"

// The prefix of CUlaunchConfig that names the stream, and where its attributes are.
typedef struct {
    unsigned sizes[7];
    word stream;
    const void *attributes;
    unsigned attribute_count;
} launch_config;

// CUlaunchAttribute: a number, and a union of 64 bytes.
typedef struct {
    int id, pad;
    char value[64];
} launch_attribute;
enum {
    ATTRIBUTE_PROGRAMMATIC_SERIALIZATION = 6,
    ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
    ATTRIBUTE_COMPLETION_EVENT = 12,
    ATTRIBUTE_LAST_KNOWN = 16,
};

// CUDA_MEMCPY2D.
typedef struct {
    word words[16];
} plane_copy;
enum {
    PLANE_FROM_X = 0,
    PLANE_FROM_Y = 1,
    PLANE_FROM_TYPE = 2,
    PLANE_FROM_HOST = 3,
    PLANE_FROM = 4,
    PLANE_FROM_PITCH = 6,
    PLANE_TO_X = 7,
    PLANE_TO_Y = 8,
    PLANE_TO_TYPE = 9,
    PLANE_TO = 11,
    PLANE_TO_PITCH = 13,
    PLANE_WIDTH = 14,
    PLANE_HEIGHT = 15,
};

// Keys of `extra`, by which a launch gives its parameters in one piece.
enum { EXTRA_END = 0, EXTRA_POINTER = 1, EXTRA_SIZE = 2 };

// CUpointer_attribute and CUmemorytype.
enum { POINTER_MEMORY_TYPE = 2, MEMORY_HOST = 1 };

// CUfunction_attribute: those of shared memory are not above the first; clusters of more than eight blocks are allowed; how clusters
// are best spread.
enum { FUNCTION_CARVEOUT = 9, FUNCTION_LARGE_CLUSTERS = 14, FUNCTION_CLUSTER_POLICY = 15 };
