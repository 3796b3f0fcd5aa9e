// The program's handles and addresses in the words of a call, and the second driver's in their place.
#pragma once

#include "second/structures.h"

// Structures that a call points to, with the second driver's handles in them.
typedef struct {
    launch_config config;
    plane_copy plane;
} translate_room;

// The second driver's words for the program's; false if an object cannot be made there.
bool translate_words(function_id id, const word *a, word *out, translate_room *room);

// The second driver's address for one that may be of a variable: the program has those of the first driver. False if the variable
// cannot be made there.
bool translate_address(word *address);

// The program's handles for those that the second driver gave.
void translate_back(function_id id, const word *a);
