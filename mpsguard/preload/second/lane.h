// Where the second driver connects: to the directory that a guard has for second drivers, or to one that is given.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// The pipe directory of the guard's for second drivers, or the one that is given; false if there is none.
bool lane_service(char *out, size_t size);

// The pipe directory for a driver that is to take the place of the one at `now` (empty: as the environment has it). A guard leads each to
// the lane on which the program is not; without one there are the program's own and the one that is given, in turn.
bool lane_directory(const char *now, char *out, size_t size);

// Whether the second driver may be connected before a fault.
bool lane_takes_ahead(void);

// Whether one may be connected again, after the program has gone over: the other lane may be the one that has just died.
bool lane_is_ready(void);

// Asks the guard behind that directory, as a command line of MPS does, and waits a second at most. False without an answer.
bool lane_ask(const char *command, char *answer, size_t size);
