// What a driver takes from the system when it is first needed, such as host memory for the parameters of launches.
#pragma once

// Has the copy at hand take it now, with its context current: all that launches and copies of a replay need. It works for a
// moment, in memory of its own. What fails is taken later.
void warm_up(void);
