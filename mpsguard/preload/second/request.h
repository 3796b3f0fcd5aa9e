// A move that the guard asks for (docs/concepts/moves.md), and what this process answers.
//
// The request lies in a file of the guard's, beside its socket for second drivers (mpsguard/guard/broker/move_page.py), the answer in
// the zone table (mpsguard/preload/second_move.py): neither writes into what is the other's. One thread calls all of this.
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

// Whether that very one is asked for still: until the guard has done its part, or gives it up.
bool request_stands(const request *asked);

// Answers one; `reason`: why not, or NULL. Times in milliseconds. Once it has failed, the next one will be asked by another word.
void request_say(const request *asked, request_answer answer, double prepared, double paused, const char *reason);
