// Hooks of the driver's own lookup: what it finds is given out as the hook that stands for it.
#include "binding/hook_table.h"
#include "hooks.h"
#include "lookup.h"

static mg_result substituted(mg_result result, const char *symbol, void **function) {
    if (result == MG_SUCCESS && symbol != NULL && function != NULL)
        *function = hook_table_substitute(lookup_driver(), symbol, *function);
    return result;
}

EXPORTED mg_result cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    DRIVER_OR_FAIL(d, get_proc_address);
    return substituted(d->get_proc_address(symbol, function, version, flags), symbol, function);
}

EXPORTED mg_result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    DRIVER_OR_FAIL(d, get_proc_address_v2);
    return substituted(d->get_proc_address_v2(symbol, function, version, flags, status), symbol, function);
}
