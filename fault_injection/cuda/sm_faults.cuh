// What a streaming multiprocessor refuses to execute.
#pragma once

#include <cassert>

#include "illegal_instruction.cuh"
#include "memory_faults.cuh"

namespace faults::sm {

__global__ void trap_kernel(bool really) {
    if (really) asm volatile("trap;");
}

__global__ void assert_kernel(int value) { assert(value == 12345); }

__global__ void shared_kernel(unsigned int index) {
    extern __shared__ int memory[];
    static_cast<volatile int*>(memory)[index] = 1;
}

// Each call needs a frame of its own: it is not inlined, and uses its memory after the deeper call returned.
__device__ __noinline__ int deeper(int depth, volatile int* seed) {
    volatile int frame[64];
    frame[depth % 64] = depth + *seed;
    if (depth == 0) return frame[0];
    const int below = deeper(depth - 1, seed);
    return below + frame[depth % 64];
}

__global__ void recursion_kernel(int depth, int* out) { *out = deeper(depth, out); }

// What CUDA does at a kernel's first launch takes milliseconds, and is no part of its fault: each one is launched once
// where it does no harm, if there is such a launch.
template <typename Launch>
Commit prepared(Launch launch) {
    launch(false);
    ending::require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    return [launch] { launch(true); };
}

inline Commit misaligned() {
    return prepared([address = memory::allocated(64)](bool really) {
        memory::store_kernel<<<1, 1>>>(address + (really ? 1 : 0));
    });
}

inline Commit shared() {
    return prepared([](bool really) {
        shared_kernel<<<1, 1, 1024>>>(really ? 0x3fffffff / sizeof(int) : 0);
    });
}

inline Commit stack() {
    return prepared([out = memory::result()](bool really) { recursion_kernel<<<1, 1>>>(really ? 1'000'000 : 1, out); });
}

inline Commit trap() {
    return prepared([](bool really) { trap_kernel<<<1, 1>>>(really); });
}

inline Commit device_assert() {
    return prepared([](bool really) { assert_kernel<<<1, 1>>>(really ? 1 : 12345); });
}

inline Commit illegal_instruction() {
    const CUfunction function = illegal::kernel();
    // It has no harmless launch; but its code is on the GPU by now.
    ending::require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    return [function] {
        ending::require("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    };
}

}  // namespace faults::sm
