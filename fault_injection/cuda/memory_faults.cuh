// Accesses to memory that is not there, or not for this: what the GPU's MMU answers with a fault.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#include <cuda.h>
#include <cuda_runtime.h>

#include "busy.cuh"
#include "ending.h"

namespace faults {

// A fault is prepared (memory, mappings) first; what that returns commits it and does nothing else.
using Commit = std::function<void()>;

namespace memory {

using ending::require;

constexpr std::uint64_t kFar = 0x7e0000000000;      // within the GPU's 49 bits; CUDA reserves nothing near it
constexpr std::uint64_t kHuge = 0x00f0000000000000;  // beyond them
constexpr size_t kPage = 2 << 20;

__global__ void store_kernel(std::uint64_t address) { *reinterpret_cast<volatile int*>(address) = 42; }

__global__ void load_kernel(std::uint64_t address, int* out) { *out = *reinterpret_cast<volatile int*>(address); }

__global__ void atomic_kernel(std::uint64_t address) { atomicAdd(reinterpret_cast<unsigned int*>(address), 1u); }

__global__ void call_kernel(std::uint64_t address, int* out) { *out = reinterpret_cast<int (*)(int)>(address)(3); }

inline Commit store_to(std::uint64_t address) {
    return [address] { store_kernel<<<1, 1>>>(address); };
}

inline std::uint64_t allocated(size_t size) {
    void* memory = nullptr;
    require("cudaMalloc", cudaMalloc(&memory, size));
    return reinterpret_cast<std::uint64_t>(memory);
}

inline int* result() { return reinterpret_cast<int*>(allocated(sizeof(int))); }

inline Commit null() { return store_to(16); }

inline Commit near() { return store_to(allocated(4 << 20) + (64 << 20)); }

inline Commit far() { return store_to(kFar); }

inline Commit huge() { return store_to(kHuge); }

inline Commit far_read() {
    return [out = result()] { load_kernel<<<1, 1>>>(kFar, out); };
}

inline Commit atomic() {
    return [] { atomic_kernel<<<1, 1>>>(kFar); };
}

inline Commit jump() {
    return [out = result()] { call_kernel<<<1, 1>>>(0x1234567890, out); };
}

// Large, so that it is a mapping of its own: small allocations share one that stays.
inline Commit freed() {
    const std::uint64_t address = allocated(256 << 20);
    require("cudaFree", cudaFree(reinterpret_cast<void*>(address)));
    return store_to(address);
}

inline Commit managed() {
    void* memory = nullptr;
    require("cudaMallocManaged", cudaMallocManaged(&memory, 64 << 20));
    require("cudaMemset", cudaMemset(memory, 0, 64 << 20));
    require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    require("cudaFree", cudaFree(memory));
    return store_to(reinterpret_cast<std::uint64_t>(memory));
}

inline Commit host_pointer() {
    void* memory = std::malloc(1 << 20);
    if (memory == nullptr) ending::failed("malloc", 0, nullptr);
    std::memset(memory, 1, 1 << 20);
    return store_to(reinterpret_cast<std::uint64_t>(memory));
}

inline CUdeviceptr reserved_range() {
    CUdeviceptr address = 0;
    require("cuMemAddressReserve", cuMemAddressReserve(&address, kPage, 0, 0, 0));
    return address;
}

// Two MiB of device memory in a range of their own.
inline CUdeviceptr mapped(CUmemAccess_flags access) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    require("cuMemCreate", cuMemCreate(&handle, kPage, &properties, 0));
    const CUdeviceptr address = reserved_range();
    require("cuMemMap", cuMemMap(address, kPage, 0, handle, 0));
    CUmemAccessDesc description = {};
    description.location = properties.location;
    description.flags = access;
    require("cuMemSetAccess", cuMemSetAccess(address, kPage, &description, 1));
    return address;
}

inline Commit reserved() { return store_to(reserved_range()); }

inline Commit read_only() { return store_to(mapped(CU_MEM_ACCESS_FLAGS_PROT_READ)); }

// The copy waits in its stream behind a kernel; its target goes away meanwhile, then the kernel is let go.
inline Commit unmapped_copy() {
    const CUdeviceptr target = mapped(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    void* source = nullptr;
    require("cudaHostAlloc", cudaHostAlloc(&source, kPage, cudaHostAllocDefault));
    cudaStream_t stream = nullptr;
    require("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    static busy::Kernel gate(3.0, stream);
    require("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync(target, source, kPage, stream));
    require("cuMemUnmap", cuMemUnmap(target, kPage));
    return [] { gate.let_go(); };
}

// One bulk copy of 128 bytes into shared memory by the tensor memory accelerator, and a bounded wait for it.
__global__ void bulk_copy_kernel(std::uint64_t source) {
#if __CUDA_ARCH__ >= 900
    __shared__ alignas(128) char target[128];
    __shared__ alignas(8) std::uint64_t barrier;
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(target));
    const auto done = static_cast<std::uint32_t>(__cvta_generic_to_shared(&barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(done) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(done) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(to),
        "l"(source), "r"(done)
        : "memory");
    const unsigned long long begin = busy::nanoseconds();
    for (std::uint32_t complete = 0; !complete && busy::nanoseconds() - begin < 2'000'000'000ull;) {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
            : "=r"(complete)
            : "r"(done)
            : "memory");
    }
#endif
}

inline Commit bulk_copy() {
    int major = 0;
    require("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < 9) ending::failed("cp.async.bulk needs compute capability 9.0", 0, nullptr);
    return [] { bulk_copy_kernel<<<1, 1>>>(kFar); };
}

}  // namespace memory
}  // namespace faults
