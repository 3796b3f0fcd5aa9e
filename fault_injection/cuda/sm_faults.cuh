// What a streaming multiprocessor refuses to execute.
#pragma once

#include <cassert>

#include "illegal_instruction.cuh"
#include "memory_faults.cuh"

namespace faults::sm {

__global__ void trap_kernel() { asm volatile("trap;"); }

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

inline Commit misaligned() {
    return [address = memory::allocated(64) + 1] { memory::store_kernel<<<1, 1>>>(address); };
}

inline Commit shared() {
    return [] { shared_kernel<<<1, 1, 1024>>>(0x3fffffff / sizeof(int)); };
}

inline Commit stack() {
    return [out = memory::result()] { recursion_kernel<<<1, 1>>>(1'000'000, out); };
}

inline Commit trap() {
    return [] { trap_kernel<<<1, 1>>>(); };
}

inline Commit device_assert() {
    return [] { assert_kernel<<<1, 1>>>(1); };
}

inline Commit illegal_instruction() {
    return [function = illegal::kernel()] {
        ending::require("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    };
}

}  // namespace faults::sm
