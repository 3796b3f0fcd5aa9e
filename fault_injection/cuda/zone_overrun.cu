// A program that accesses memory outside its own allocation, and knows nothing of mpsguard. Under the preload the access
// lands in a zone; without it, it is the fault that ends all clients of an MPS server.
//
//   zone_overrun [--bytes N] [--past N | --before N] [--access write|read|atomic] [--by runtime|driver|ordered]
//                [--busy S] [--controlled]
//
//   --bytes N      size of the allocation (default 4194304)
//   --past N       access the byte N behind its end (default 0: the first one; rounded down to a multiple of 4)
//   --before N     access the byte N before its start
//   --access       what the kernel does (default write)
//   --by           the allocator: cudaMalloc, cuMemAlloc or cudaMallocAsync (default runtime); the last in memory that
//                  was freed before
//   --busy S       the same kernel then runs on for S seconds, so that the program can be ended in its middle
//   --controlled   wait for a line on standard input before the access
//
// Events (json_line.h): start, allocated (address, bytes), injected (address: just before the launch), error (code, name:
// what the synchronisation after it returned), intact (whether the allocation still has its contents), finished.
// Exit status: 0 finished, 2 usage, 3 died of a CUDA error, 4 failed before.

#include <cinttypes>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "busy.cuh"
#include "ending.h"
#include "json_line.h"

namespace {

using ending::require;
using json_line::emit;

enum class Access { kWrite, kRead, kAtomic };
enum class By { kRuntime, kDriver, kOrdered };

struct Options {
    size_t bytes = 4 << 20;
    std::uint64_t past = 0, before = 0;
    Access access = Access::kWrite;
    By by = By::kRuntime;
    double busy = 0;
    bool controlled = false;
};

__global__ void access_kernel(std::uint64_t address, Access access, unsigned* result, unsigned long long nanoseconds) {
    volatile unsigned* const word = reinterpret_cast<volatile unsigned*>(address);
    if (access == Access::kWrite) *word = 42;
    else if (access == Access::kRead) *result = *word;
    else *result = atomicAdd(reinterpret_cast<unsigned*>(address), 1u);
    __threadfence_system();
    const unsigned long long begin = busy::nanoseconds();
    while (busy::nanoseconds() - begin < nanoseconds) {
    }
}

[[noreturn]] void usage() {
    std::fprintf(stderr, "zone_overrun: an unknown option, or a wrong value\n");
    ending::leave(ending::kUsage);
}

std::uint64_t whole(const char* text) {
    char* end = nullptr;
    const std::uint64_t value = std::strtoull(text, &end, 0);
    if (end == text || *end != '\0') usage();
    return value;
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const char* const name = argv[i];
        if (std::strcmp(name, "--controlled") == 0) {
            options.controlled = true;
            continue;
        }
        if (i + 1 == argc) usage();
        const char* const value = argv[++i];
        const auto is = [value](const char* word) { return std::strcmp(value, word) == 0; };
        if (std::strcmp(name, "--bytes") == 0) options.bytes = whole(value);
        else if (std::strcmp(name, "--past") == 0) options.past = whole(value);
        else if (std::strcmp(name, "--before") == 0) options.before = whole(value);
        else if (std::strcmp(name, "--busy") == 0) options.busy = std::atof(value);
        else if (std::strcmp(name, "--by") == 0 && is("runtime")) options.by = By::kRuntime;
        else if (std::strcmp(name, "--by") == 0 && is("driver")) options.by = By::kDriver;
        else if (std::strcmp(name, "--by") == 0 && is("ordered")) options.by = By::kOrdered;
        else if (std::strcmp(name, "--access") == 0 && is("write")) options.access = Access::kWrite;
        else if (std::strcmp(name, "--access") == 0 && is("read")) options.access = Access::kRead;
        else if (std::strcmp(name, "--access") == 0 && is("atomic")) options.access = Access::kAtomic;
        else usage();
    }
    if (options.bytes < 4 || (options.before > 0 && options.before < 4)) usage();
    return options;
}

std::uint64_t allocate(size_t bytes, By by) {
    CUdeviceptr address = 0;
    void* memory = nullptr;
    if (by == By::kDriver) {
        require("cuMemAlloc", cuMemAlloc(&address, bytes));
        return address;
    }
    if (by == By::kRuntime) {
        require("cudaMalloc", cudaMalloc(&memory, bytes));
        return reinterpret_cast<std::uint64_t>(memory);
    }
    // Of another size first: where the memory is used again, a fault is to be told by the size that it has now.
    require("cudaMallocAsync", cudaMallocAsync(&memory, bytes - bytes / 8, nullptr));
    require("cudaFreeAsync", cudaFreeAsync(memory, nullptr));
    require("cudaMallocAsync", cudaMallocAsync(&memory, bytes, nullptr));
    return reinterpret_cast<std::uint64_t>(memory);
}

void release(std::uint64_t address, By by) {
    void* const memory = reinterpret_cast<void*>(address);
    if (by == By::kDriver) require("cuMemFree", cuMemFree(address));
    else if (by == By::kRuntime) require("cudaFree", cudaFree(memory));
    else require("cudaFreeAsync", cudaFreeAsync(memory, nullptr));
}

bool is_intact(std::uint64_t address, size_t bytes) {
    std::vector<unsigned char> contents(bytes);
    require("cudaMemcpy", cudaMemcpy(contents.data(), reinterpret_cast<void*>(address), bytes, cudaMemcpyDeviceToHost));
    for (const unsigned char byte : contents)
        if (byte != 0x5a) return false;
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    emit("start");
    require("cuInit", cuInit(0));
    require("cudaFree", cudaFree(nullptr));
    unsigned* result = nullptr;
    require("cudaHostAlloc", cudaHostAlloc(reinterpret_cast<void**>(&result), sizeof *result, cudaHostAllocMapped));
    const std::uint64_t memory = allocate(options.bytes, options.by);
    require("cudaMemset", cudaMemset(reinterpret_cast<void*>(memory), 0x5a, options.bytes));
    require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    emit("allocated", "\"address\":%" PRIu64 ",\"bytes\":%zu", memory, options.bytes);
    if (options.controlled && std::getchar() == EOF) ending::leave(0);

    const std::uint64_t wanted = options.before ? memory - options.before : memory + options.bytes + options.past;
    const std::uint64_t address = wanted & ~std::uint64_t{3};
    emit("injected", "\"address\":%" PRIu64, address);
    access_kernel<<<1, 1>>>(address, options.access, result, static_cast<unsigned long long>(options.busy * 1e9));
    const cudaError_t error = cudaDeviceSynchronize();
    emit("error", "\"code\":%d,\"name\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error));
    if (error != cudaSuccess) ending::leave(ending::kDied);
    emit("intact", "\"value\":%s", is_intact(memory, options.bytes) ? "true" : "false");
    release(memory, options.by);
    emit("finished");
    return 0;
}
