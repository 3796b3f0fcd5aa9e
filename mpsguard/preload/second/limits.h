// Limits of the context that the program has set, such as that of a kernel's stack: the other copies are given them too.
#pragma once

#include "second/copies.h"

void limits_note(word limit, word value);

// Gives them to the copy at hand. Its context is current; false if the driver refuses one.
bool limits_set(void);

// The same ahead of a takeover, if any was noted since: for what depends on them.
bool limits_set_ahead(void);
