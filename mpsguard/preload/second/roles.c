#include "second/roles.h"

#include <string.h>

// Kinds by their names in functions.h.
#define KINDS_0() KIND_END
#define KINDS_1(a) KIND_##a
#define KINDS_2(a, b) KIND_##a, KIND_##b
#define KINDS_3(a, ...) KIND_##a, KINDS_2(__VA_ARGS__)
#define KINDS_4(a, ...) KIND_##a, KINDS_3(__VA_ARGS__)
#define KINDS_5(a, ...) KIND_##a, KINDS_4(__VA_ARGS__)
#define KINDS_6(a, ...) KIND_##a, KINDS_5(__VA_ARGS__)
#define KINDS_7(a, ...) KIND_##a, KINDS_6(__VA_ARGS__)
#define KINDS_8(a, ...) KIND_##a, KINDS_7(__VA_ARGS__)
#define KINDS_9(a, ...) KIND_##a, KINDS_8(__VA_ARGS__)
#define KINDS_10(a, ...) KIND_##a, KINDS_9(__VA_ARGS__)
#define KINDS_11(a, ...) KIND_##a, KINDS_10(__VA_ARGS__)
#define KINDS_12(a, ...) KIND_##a, KINDS_11(__VA_ARGS__)
#define KINDS_13(a, ...) KIND_##a, KINDS_12(__VA_ARGS__)
#define KINDS_14(a, ...) KIND_##a, KINDS_13(__VA_ARGS__)
#define KINDS_15(a, ...) KIND_##a, KINDS_14(__VA_ARGS__)
#define KINDS_16(a, ...) KIND_##a, KINDS_15(__VA_ARGS__)

const function_role functions[FUNCTION_COUNT] = {
#define DRIVER_FUNCTION(name, role, reason, place, count, ...) {ROLE_##role, reason, count, {KINDS_##count(__VA_ARGS__)}},
#include "second/functions.h"
#undef DRIVER_FUNCTION
};

function_facts facts[FUNCTION_COUNT];

// By the beginning of a name, the first that fits.
static const struct {
    const char *begins;
    shape shape;
} shapes[] = {
    {"cuLaunchKernel", SHAPE_LAUNCH},    {"cuLaunchCooperativeKernel", SHAPE_LAUNCH},
    {"cuMemcpyHtoD", SHAPE_TO_DEVICE},   {"cuMemcpyDtoH", SHAPE_TO_HOST},
    {"cuMemcpyDtoD", SHAPE_BETWEEN},     {"cuMemcpy2D", SHAPE_PLANE},
    {"cuMemsetD", SHAPE_SET},            {"cuMemcpy_", SHAPE_ANY},
    {"cuMemcpyAsync", SHAPE_ANY},        {"cuGraphLaunch", SHAPE_GRAPH},
};

static shape shape_of(const char *name) {
    if (strcmp(name, "cuMemcpy") == 0) return SHAPE_ANY;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        if (strncmp(name, shapes[i].begins, strlen(shapes[i].begins)) == 0) return shapes[i].shape;
    return SHAPE_OTHER;
}

void roles_find_facts(void) {
    for (size_t id = 0; id < FUNCTION_COUNT; ++id) {
        const char *const name = copies_name((function_id)id), *const end = name + strlen(name);
        facts[id].per_thread = end - name > 5 && (strcmp(end - 5, "_ptsz") == 0 || strcmp(end - 5, "_ptds") == 0);
        facts[id].shape = shape_of(name);
        facts[id].stream = NO_STREAM;
        for (size_t i = 0; i < functions[id].count; ++i)
            if (functions[id].kinds[i] == KIND_STREAM) facts[id].stream = (unsigned char)i;
    }
}

bool roles_has_config(function_id id) {
    return id == FUNCTION_cuLaunchKernelEx || id == FUNCTION_cuLaunchKernelEx_ptsz;
}
