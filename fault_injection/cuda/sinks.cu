// Questions about sinks of the patched kernel module that only a GPU answers (docs/guides/kernel-module.md). The
// program is a client of MPS. Its accesses fault; the module contains each in a sink of the kind in question.
//
//   sinks NAME        one of `table` below
//   sinks innocent    no fault: adds to its own memory until standard input ends, and counts
//
// Events (json_line.h): start, injected (address: just before it), error (code, name: what the synchronisation after it
// returned; 0 for success), answer (value: what a load, an atomic or a copy got; intact: whether memory of its own,
// which the sink must leave alone, is as it was), finished (rounds, exact: whether each addition to its own memory
// counted). The storms and the innocent say ready before they begin.
// Exit status: 0 finished, 2 usage, 3 died of a CUDA error, 4 failed before, or it could not ask.

#include <cinttypes>
#include <cstdint>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "busy.cuh"
#include "ending.h"
#include "json_line.h"
#include "memory_faults.cuh"

namespace {

namespace memory = faults::memory;
using ending::require;
using json_line::emit;

constexpr size_t kSmallPage = 4096;
constexpr int kBlocks = 32, kThreads = 256, kRounds = 200;
constexpr double kGate = 5.0;  // seconds that the stream waits for what goes away under it

enum class Access { kStore, kLoad, kAtomic };

__global__ void access_kernel(std::uint64_t address, Access access, unsigned* out) {
    volatile unsigned* const word = reinterpret_cast<volatile unsigned*>(address);
    if (access == Access::kStore) *word = 42;
    else if (access == Access::kLoad) *out = *word;
    else *out = atomicAdd(reinterpret_cast<unsigned*>(address), 1u);
}

// Each thread once there and once here; only what is here counts.
__global__ void storm_kernel(std::uint64_t address, Access access, unsigned long long* own) {
    if (access == Access::kStore) *reinterpret_cast<volatile unsigned*>(address) = 42;
    else atomicAdd(reinterpret_cast<unsigned*>(address), 1u);
    atomicAdd(own, 1ull);
}

unsigned* shared_word() {
    void* word = nullptr;
    require("cudaHostAlloc", cudaHostAlloc(&word, sizeof(unsigned), cudaHostAllocMapped));
    // Not what a sink gives.
    std::memset(word, 0x5a, sizeof(unsigned));
    return static_cast<unsigned*>(word);
}

void end_if(cudaError_t error) {
    emit("error", "\"code\":%d,\"name\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error));
    if (error == cudaSuccess) return;
    emit("died", "\"code\":%d,\"name\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error));
    ending::leave(ending::kDied);
}

void answer(unsigned value, bool intact) {
    emit("answer", "\"value\":%u,\"intact\":%s", value, intact ? "true" : "false");
}

unsigned access(std::uint64_t address, Access kind) {
    unsigned* const out = shared_word();
    emit("injected", "\"address\":\"0x%" PRIx64 "\"", address);
    access_kernel<<<1, 1>>>(address, kind, out);
    end_if(cudaDeviceSynchronize());
    return kind == Access::kStore ? 0 : *out;
}

// A page of the client's own that the GPU maps with an entry of 4 KiB, first in 2 MiB where nothing else is.
char* small_page() {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const reserved = mmap(nullptr, 2 * memory::kPage, PROT_NONE, kFlags, -1, 0);
    if (reserved == MAP_FAILED) ending::failed("mmap", 0, nullptr);
    const auto start = (reinterpret_cast<std::uint64_t>(reserved) + memory::kPage - 1) & ~(memory::kPage - 1);
    char* const page = reinterpret_cast<char*>(start);
    if (mprotect(page, kSmallPage, PROT_READ | PROT_WRITE) != 0) ending::failed("mprotect", 0, nullptr);
    std::memset(page, 0x5a, kSmallPage);
    require("cudaHostRegister", cudaHostRegister(page, kSmallPage, cudaHostRegisterMapped));
    return page;
}

// The GPU still writes to it, and the rest of it is as it was.
bool still_works(char* page) {
    void* there = nullptr;
    require("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&there, page, 0));
    access_kernel<<<1, 1>>>(reinterpret_cast<std::uint64_t>(there), Access::kStore, nullptr);
    require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    unsigned first = 0;
    std::memcpy(&first, page, sizeof(first));
    bool intact = first == 42;
    for (size_t i = sizeof(first); i < kSmallPage; ++i) intact = intact && page[i] == 0x5a;
    return intact;
}

template <Access kind>
void medium() {
    answer(access(memory::kFar, kind), true);
}

template <Access kind, size_t distance>
void behind_small() {
    char* const page = small_page();
    const unsigned value = access(reinterpret_cast<std::uint64_t>(page) + distance, kind);
    answer(value, still_works(page));
}

// A store to a mapping that permits none: the sink takes its place, an entry of 2 MiB. The memory is mapped once more.
template <Access kind>
void large() {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    require("cuMemCreate", cuMemCreate(&handle, memory::kPage, &properties, 0));
    CUdeviceptr at[2];
    for (int i = 0; i < 2; ++i) {
        CUmemAccessDesc description = {};
        description.location = properties.location;
        description.flags = i == 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
        at[i] = memory::reserved_range();
        require("cuMemMap", cuMemMap(at[i], memory::kPage, 0, handle, 0));
        require("cuMemSetAccess", cuMemSetAccess(at[i], memory::kPage, &description, 1));
    }
    require("cuMemsetD32", cuMemsetD32(at[0], 7, memory::kPage / 4));
    require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    const unsigned value = access(at[1], kind);
    unsigned kept = 0;
    require("cuMemcpyDtoH", cuMemcpyDtoH(&kept, at[0], sizeof(kept)));
    answer(value, kept == 7);
}

// What `queue` puts into a stream waits there behind a kernel, while its memory goes away.
template <typename Queue>
void under_a_stream(Queue queue) {
    const CUdeviceptr target = memory::mapped(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    cudaStream_t stream = nullptr;
    require("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    busy::Kernel gate(kGate, stream);
    queue(target, stream);
    require("cuMemUnmap", cuMemUnmap(target, memory::kPage));
    if (!gate.runs()) ending::failed("cuMemUnmap waits for the stream: it cannot be asked", 0, nullptr);
    emit("injected", "\"address\":\"0x%llx\"", static_cast<unsigned long long>(target));
    gate.let_go();
    end_if(cudaStreamSynchronize(stream));
}

void copy_to() {
    unsigned* const source = shared_word();
    under_a_stream([source](CUdeviceptr target, cudaStream_t stream) {
        require("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync(target, source, sizeof(*source), stream));
    });
    answer(0, *source == 0x5a5a5a5a);
}

void copy_from() {
    unsigned* const sink = shared_word();
    under_a_stream([sink](CUdeviceptr target, cudaStream_t stream) {
        require("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync(sink, target, sizeof(*sink), stream));
    });
    answer(*sink, true);
}

// By the host's front end (PBDMA), as stream-ordered memory operations are.
void semaphore_release() {
    under_a_stream([](CUdeviceptr target, cudaStream_t stream) {
        require("cuStreamWriteValue32", cuStreamWriteValue32(stream, target, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    });
    answer(0, true);
}

// For 0, which a sink gives: for any other value it would wait for good.
void semaphore_acquire() {
    under_a_stream([](CUdeviceptr target, cudaStream_t stream) {
        require("cuStreamWaitValue32", cuStreamWaitValue32(stream, target, 0, CU_STREAM_WAIT_VALUE_EQ));
    });
    answer(0, true);
}

unsigned long long* counter() {
    void* own = nullptr;
    require("cudaMalloc", cudaMalloc(&own, sizeof(unsigned long long)));
    require("cudaMemset", cudaMemset(own, 0, sizeof(unsigned long long)));
    return static_cast<unsigned long long*>(own);
}

void finish(unsigned long long* own, unsigned long long rounds) {
    unsigned long long counted = 0;
    require("cudaMemcpy", cudaMemcpy(&counted, own, sizeof(counted), cudaMemcpyDeviceToHost));
    emit("finished", "\"rounds\":%llu,\"exact\":%s", rounds, counted == rounds * kBlocks * kThreads ? "true" : "false");
    ending::leave(0);
}

// Waits for a line first, so that two of them begin together.
template <Access kind>
void storm() {
    unsigned long long* const own = counter();
    emit("ready");
    char line[16];
    if (read(STDIN_FILENO, line, sizeof(line)) <= 0) ending::leave(ending::kFailed);
    emit("injected", "\"address\":\"0x%" PRIx64 "\"", memory::kFar);
    for (int i = 0; i < kRounds; ++i) storm_kernel<<<kBlocks, kThreads>>>(memory::kFar, kind, own);
    end_if(cudaDeviceSynchronize());
    answer(0, true);
    finish(own, kRounds);
}

void innocent() {
    void* also = nullptr;
    require("cudaMalloc", cudaMalloc(&also, sizeof(unsigned)));
    unsigned long long* const own = counter();
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    unsigned long long rounds = 0;
    emit("ready");
    for (; poll(&input, 1, 0) == 0; ++rounds) {
        storm_kernel<<<kBlocks, kThreads>>>(reinterpret_cast<std::uint64_t>(also), Access::kAtomic, own);
        const cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaSuccess) end_if(error);
    }
    finish(own, rounds);
}

struct Question {
    const char* name;
    void (*ask)();
};

const Question table[] = {
    {"64k-store", medium<Access::kStore>},
    {"64k-load", medium<Access::kLoad>},
    {"64k-atomic", medium<Access::kAtomic>},
    {"4k-store", behind_small<Access::kStore, 2 * kSmallPage>},
    {"4k-load", behind_small<Access::kLoad, 2 * kSmallPage>},
    {"4k-atomic", behind_small<Access::kAtomic, 2 * kSmallPage>},
    {"2m-store", large<Access::kStore>},
    {"2m-atomic", large<Access::kAtomic>},
    {"64k-store-beside-4k", behind_small<Access::kStore, memory::kPage / 2>},
    {"64k-load-beside-4k", behind_small<Access::kLoad, memory::kPage / 2>},
    {"copy-to", copy_to},
    {"copy-from", copy_from},
    {"release", semaphore_release},
    {"acquire", semaphore_acquire},
    {"store-storm", storm<Access::kStore>},
    {"atomic-storm", storm<Access::kAtomic>},
    {"innocent", innocent},
};

}  // namespace

int main(int argc, char** argv) {
    for (const Question& question : table) {
        if (argc != 2 || std::strcmp(question.name, argv[1]) != 0) continue;
        emit("start");
        require("cuInit", cuInit(0));
        require("cudaSetDevice", cudaSetDevice(0));
        require("cudaFree", cudaFree(nullptr));
        question.ask();
        emit("finished", "\"rounds\":1,\"exact\":true");
        ending::leave(0);
    }
    std::fprintf(stderr, "usage: sinks NAME\n");
    for (const Question& question : table) std::fprintf(stderr, "  %s\n", question.name);
    return ending::kUsage;
}
