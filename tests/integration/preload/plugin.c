// A library that a program loads: linked against the driver like any other, and calling it through its own slots.
#include "reach.h"

int plugin_reach(const char *how, api *out);

__attribute__((visibility("default"))) int plugin_reach(const char *how, api *out) { return reach(how, out); }
