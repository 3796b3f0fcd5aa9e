// Where the second driver connects: to the directory that a guard has for second drivers, or to one that is given.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// The pipe directory for the second driver; false if there is no other lane.
bool lane_directory(char *out, size_t size);

// Whether the second driver may be connected before a fault.
bool lane_takes_ahead(void);

// Asks the guard behind that directory, as a command line of MPS does, and waits a second at most. False without an answer.
bool lane_ask(const char *command, char *answer, size_t size);
