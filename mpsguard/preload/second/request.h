// A move that the guard asks for (docs/concepts/moves.md), and what this process answers.
//
// Both lie in the zone table (zone_table.h): the guard writes the request there, and reads the answer when it likes.
// mpsguard/preload/second_move.py is its side.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint32_t number;  // 0: nothing is asked
    unsigned share;   // percent of the SMs, in hundredths; 0: as the environment has it
    bool shut_down;   // the first driver's sockets to its server are to be shut down
} request;

typedef enum {
    ANSWER_UNDER_WAY = 1,
    ANSWER_MOVED,
    ANSWER_BUSY,
    ANSWER_FAILED,
} request_answer;

// What is asked now.
request request_now(void);

// Whether that very one is asked for still.
bool request_stands(const request *asked);

// Answers one; `reason`: why not, or NULL. Times in milliseconds.
void request_say(const request *asked, request_answer answer, double prepared, double paused, const char *reason);
