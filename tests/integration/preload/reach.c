#define _GNU_SOURCE
#include "reach.h"

#include <dlfcn.h>
#include <string.h>

#define DECLARE(name, symbol, parameters) extern int name parameters;
REACHED(DECLARE)
#undef DECLARE

typedef int (*proc1)(const char *, void **, int, uint64_t);
typedef int (*proc2)(const char *, void **, int, uint64_t, int *);

static int by_proc(void *query, int version, uint64_t flags, int newer, api *out) {
#define ASK(name, symbol, parameters)                                                                      \
    {                                                                                                      \
        void *function = NULL;                                                                             \
        int status = 0;                                                                                    \
        const int result = newer ? ((proc2)query)(symbol, &function, version, flags, &status)              \
                                 : ((proc1)query)(symbol, &function, version, flags);                      \
        if (result != 0 || status != 0 || function == NULL) return 0;                                      \
        memcpy(&out->name, &function, sizeof function);                                                    \
    }
    REACHED(ASK)
#undef ASK
    return 1;
}

int reach(const char *how, api *out) {
    if (strcmp(how, "direct") == 0) {
#define TAKE(name, symbol, parameters) out->name = name;
        REACHED(TAKE)
#undef TAKE
        return 1;
    }
    void *const library = strcmp(how, "default") == 0 ? RTLD_DEFAULT : dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL && strcmp(how, "default") != 0) return 0;
    if (strcmp(how, "dlsym") == 0 || strcmp(how, "default") == 0) {
#define LOOK_UP(name, symbol, parameters)                      \
        {                                                      \
            void *const function = dlsym(library, #name);      \
            if (function == NULL) return 0;                    \
            memcpy(&out->name, &function, sizeof function);    \
        }
        REACHED(LOOK_UP)
#undef LOOK_UP
        return 1;
    }
    void *query = dlsym(library, "cuGetProcAddress");
    void *const query2 = dlsym(library, "cuGetProcAddress_v2");
    if (strcmp(how, "proc1") == 0) return by_proc(query, 12040, 0, 0, out);
    if (strcmp(how, "proc2") == 0) return by_proc(query2, 13000, 0, 1, out);
    if (strcmp(how, "ptsz") == 0) return by_proc(query2, 13000, 2, 1, out);
    if (strcmp(how, "nested") == 0) {
        // A version below 12 returns the older signature, which then returns the newer one.
        void *older = NULL, *newer = NULL;
        if (((proc1)query)("cuGetProcAddress", &older, 11080, 0) != 0) return 0;
        if (((proc1)older)("cuGetProcAddress", &newer, 12000, 0) != 0) return 0;
        return by_proc(newer, 12060, 0, 1, out);
    }
    return 0;
}
