// A call that was kept (log.h), made again in the copy of the driver at hand, in a stream of that copy.
#pragma once

#include "second/log.h"

// LOG_LAUNCH and LOG_CALL; false if it cannot be made.
bool repeat_launch(log_entry *entry, word stream);
bool repeat_call(log_entry *entry, word stream);
