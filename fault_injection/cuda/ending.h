// How a CUDA program here ends before its time: with an event that says why, and without CUDA's own teardown.
#pragma once

#include <cstdio>

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include "json_line.h"

namespace ending {

constexpr int kUsage = 2, kDied = 3, kFailed = 4;

// Leaves without destructors or atexit handlers: after a fatal error any CUDA call may block for good.
[[noreturn]] inline void leave(int status) {
    std::fflush(stdout);
    _exit(status);
}

// Driver and runtime error codes are the same numbers where both exist.
[[noreturn]] inline void failed(const char* call, int code, const char* name) {
    json_line::emit("failed", "\"code\":%d,\"name\":\"%s\",\"call\":\"%s\"", code, name ? name : "?", call);
    leave(kFailed);
}

// The call must have worked; `call` is its name.
inline void require(const char* call, cudaError_t error) {
    if (error != cudaSuccess) failed(call, static_cast<int>(error), cudaGetErrorName(error));
}

inline void require(const char* call, CUresult result) {
    if (result == CUDA_SUCCESS) return;
    const char* name = nullptr;
    cuGetErrorName(result, &name);
    failed(call, static_cast<int>(result), name);
}

}  // namespace ending
