#include "second/warm.h"

#include "second/copies.h"
#include "second/replay.h"

#define IN_ORDER WORD(MG_STREAM_LEGACY)
// Beside three words, up to the size of parameters that all architectures take. In `nothing`, too.
#define PARAMETER_BYTES 4072
#define BYTES ((uint64_t)64 << 10)

// A driver's calls for memory wait while a lane that has just died is cleared: so waited one launch of a replay for 0.3 to 1.1 s
// (H200, 580.159.04; the kernel's stacks of that thread). It was the first one of a kernel with assertions: so this has a call of
// each kind that a driver has to make ready for, and makes none.
static const char nothing[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
    ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
    ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .align 8 .b8 d[4072])\n{\n"
    " .reg .pred p;\n .reg .b64 x;\n .reg .b32 y;\n"
    " ld.param.u64 x, [a];\n cvt.u32.u64 y, x;\n setp.eq.u64 p, x, 0;\n @p bra done;\n"
    " {\n .param .b64 m;\n .param .b64 n;\n .param .b32 r;\n st.param.b64 [m], x;\n st.param.b64 [n], x;\n"
    " call.uni (r), vprintf, (m, n);\n }\n"
    " {\n .param .b64 m;\n .param .b64 n;\n .param .b32 o;\n .param .b64 s;\n .param .b64 t;\n"
    " st.param.b64 [m], x;\n st.param.b64 [n], x;\n st.param.b32 [o], y;\n st.param.b64 [s], x;\n st.param.b64 [t], x;\n"
    " call.uni __assertfail, (m, n, o, s, t);\n }\n"
    "done:\n ret;\n}\n";

static void launch_nothing(word module) {
    static unsigned char large[PARAMETER_BYTES];
    word function = 0, small = 0;
    const void *parameters[] = {&small, &small, &small, large};
    if (CALL(copies_at_work(), cuModuleGetFunction, WORD(&function), module, WORD("nothing")) != MG_SUCCESS) return;
    for (int i = 0; i < REPLAY_BATCH; ++i)
        CALL(copies_at_work(), cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, IN_ORDER, WORD(parameters), 0);
}

static void copy_nothing(void) {
    static unsigned char between[BYTES];
    word memory = 0;
    if (CALL(copies_at_work(), cuMemAlloc_v2, WORD(&memory), 2 * BYTES) != MG_SUCCESS) return;
    CALL(copies_at_work(), cuMemcpyHtoD_v2, memory, WORD(between), BYTES);
    for (int i = 0; i < REPLAY_BATCH; ++i) {
        CALL(copies_at_work(), cuMemsetD8Async, memory, 0, BYTES, IN_ORDER);
        CALL(copies_at_work(), cuMemcpyDtoDAsync_v2, memory + BYTES, memory, BYTES, IN_ORDER);
        CALL(copies_at_work(), cuMemcpyHtoDAsync_v2, memory, WORD(between), sizeof(word), IN_ORDER);
    }
    // Behind all of it.
    CALL(copies_at_work(), cuMemcpyDtoH_v2, WORD(between), memory, BYTES);
    CALL(copies_at_work(), cuMemFree_v2, memory);
}

void warm_up(void) {
    word module = 0;
    const bool loaded = CALL(copies_at_work(), cuModuleLoadData, WORD(&module), WORD(nothing)) == MG_SUCCESS;
    if (loaded) launch_nothing(module);
    copy_nothing();
    if (loaded) CALL(copies_at_work(), cuModuleUnload, module);
}
