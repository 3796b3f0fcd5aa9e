// A line of JSON for each takeover or move, in the file that MPSGUARD_SECOND_REPORT names.
#pragma once

#include "second/steps.h"

// `reason`: NULL if there is none. `detail` has no character that JSON would have escaped.
void report_write(const char *outcome, const char *reason, const char *detail, double milliseconds, const steps *of);
