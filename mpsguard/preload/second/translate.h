// The program's handles and addresses in the words of a call, and those of the copy at work in their place.
#pragma once

#include "second/structures.h"

// Structures that a call points to, with that copy's handles in them.
typedef struct {
    launch_config config;
    plane_copy plane;
} translate_room;

// The copy's words for the program's; false if an object cannot be made there.
bool translate_words(function_id id, const word *a, word *out, translate_room *room);

// The copy's address for one that may be of a variable: the program has that of the copy that told it. False if the variable
// cannot be made there.
bool translate_address(word *address);

// The program's handles for those that the copy gave.
void translate_back(function_id id, const word *a);
