// Code that the program gave to the driver: kept, so that the second driver can be given the same, and read, to know the
// variables in it.
#pragma once

#include "second/copies.h"

typedef struct image image;

// Loads the libraries that unpack images: under no lock, for the loader has one that others may hold when they come here.
void images_prepare(void);

// Keeps the code at `code` with its compiler options (as cuModuleLoadDataEx has them; `count` 0: none). What lies in a
// loaded library stays where it is; anything else is copied. NULL if it cannot be kept: a reason is held then.
image *images_keep(const void *code, word count, const int *options, const word *values);

// The content of a file of code, as the driver reads it, to be freed by the caller; NULL if it cannot be read.
void *images_read(const char *path);

mg_result images_load_module(const driver_copy *copy, const image *code, word *module);
mg_result images_load_library(const driver_copy *copy, const image *code, word *library);

typedef struct {
    char *name;
    uint64_t size;
    bool constant;  // kernels read it by another way than by its address
} image_variable;

// The variables that kernels of the image could write, or a copy of the program; made on first use. `count` is -1 if they
// cannot be known: an image of source code, or one that is compressed in a way that nothing here can undo.
const image_variable *images_variables(image *code, long *count);

// Whether a kernel of the image may allocate from the device's heap, and whether a variable begins with the address of a
// variable or a function, which is another one in the second driver. Known after images_variables.
bool images_use_heap(const image *code);
bool images_have_pointers(const image *code);
