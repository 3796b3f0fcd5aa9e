// A CUDA program that knows nothing of mpsguard and is never idle: eight kernels of a millisecond are queued at any time.
//
//   second_busy [ROUNDS [FAULT | graph]]
//
// Runtime API: two streams that wait for each other, copies from memory that is not pinned, fills, memory of a short life, a
// __constant__ that the host writes, a __device__ counter, and a copy to pinned memory in each round, which the host looks at one
// round later. It waits for a line on standard input before its rounds; the end of the input ends it.
//
// With `graph` the kernels of a round and the waits between are those of a captured graph, launched in each.
//
// With FAULT (trap, misaligned, shared) a kernel of its own faults after some rounds, with work before and behind it: event injected.
//
// Events (json_line.h), in order: start, idle, busy (after some rounds), went_on (milliseconds: the longest round), result
// (digest: of every bit that it computed or saw), and last one of
//   finished
//   died      code, name, call: the CUDA error after the line
//   failed    code, name, call: the CUDA error before it
// Exit status: 0 finished, 3 died, 4 failed.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>
#include <unistd.h>

#include "ending.h"
#include "json_line.h"

namespace {

using json_line::emit;
using json_line::monotonic;

constexpr size_t kWords = size_t{1} << 20, kSeen = 16;
constexpr int kThreads = 256, kBlocks = 8;
constexpr unsigned kRounds = 1500, kBusy = 20, kFault = 200, kShortLife = 50;  // rounds, unless it is told
constexpr const char* kFaults[] = {"trap", "misaligned", "shared"};
constexpr unsigned long long kNanoseconds = 1000000;

bool told = false;  // whether the line has come

__device__ unsigned long long total;
__constant__ unsigned factors[4];

// What the next one computes depends on it, and on how often it ran.
__global__ void work(unsigned* words, const unsigned* others, const unsigned* addend, unsigned number) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < kWords; i += kBlocks * kThreads) {
        words[i] = words[i] * factors[(*addend + number) % 4] + others[i] + *addend;
        if (i == 0) atomicAdd(&total, words[0]);
    }
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < kNanoseconds);
}

// Those of sm_faults.cuh come with code that a second driver refuses.
__global__ void fault(int which, unsigned* words, unsigned far) {
    extern __shared__ unsigned memory[];
    if (which == 0) asm volatile("trap;");
    if (which == 1) *reinterpret_cast<volatile unsigned*>(reinterpret_cast<char*>(words) + 1) = 1;
    if (which == 2) static_cast<volatile unsigned*>(memory)[far] = 1;
}

__global__ void read_total(unsigned long long* out) { *out = total; }

void check(const char* call, cudaError_t error) {
    if (error == cudaSuccess) return;
    if (!told) ending::failed(call, static_cast<int>(error), cudaGetErrorName(error));
    emit("died", "\"code\":%d,\"name\":\"%s\",\"call\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error), call);
    ending::leave(ending::kDied);
}

// FNV-1a over units of 32 bits.
struct Digest {
    uint64_t value = 1469598103934665603u;

    void add(const unsigned* words, size_t count) {
        for (size_t i = 0; i < count; ++i) value = (value ^ words[i]) * 1099511628211u;
    }
};

struct Program {
    unsigned *first = nullptr, *second = nullptr, *addend = nullptr, *seen = nullptr;
    unsigned long long* counter = nullptr;
    cudaStream_t streams[2];
    cudaEvent_t turn, done[2];
    cudaGraphExec_t graph = nullptr;
    Digest digest;

    explicit Program(bool captured) {
        std::vector<unsigned> values(kWords);
        for (size_t i = 0; i < kWords; ++i) values[i] = static_cast<unsigned>(i * 2654435761u);
        for (unsigned** words : {&first, &second}) {
            check("cudaMalloc", cudaMalloc(words, kWords * sizeof **words));
            check("cudaMemcpy", cudaMemcpy(*words, values.data(), kWords * sizeof **words, cudaMemcpyHostToDevice));
        }
        check("cudaMalloc", cudaMalloc(&addend, sizeof *addend));
        check("cudaMalloc", cudaMalloc(&counter, sizeof *counter));
        check("cudaMallocHost", cudaMallocHost(&seen, 2 * kSeen * sizeof *seen));
        for (cudaStream_t& stream : streams) {
            check("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        }
        for (cudaEvent_t* event : {&turn, &done[0], &done[1]}) {
            check("cudaEventCreate", cudaEventCreateWithFlags(event, cudaEventDisableTiming));
        }
        const unsigned odd[4] = {3, 5, 7, 11};
        check("cudaMemcpyToSymbol", cudaMemcpyToSymbol(factors, odd, sizeof odd));
        if (captured) capture();
    }

    void capture() {
        cudaGraph_t made;
        check("cudaStreamBeginCapture", cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
        launch_all();
        check("cudaStreamEndCapture", cudaStreamEndCapture(streams[0], &made));
        check("cudaGraphInstantiate", cudaGraphInstantiateWithFlags(&graph, made, 0));
        check("cudaGraphDestroy", cudaGraphDestroy(made));
    }

    void launch_all() {
        for (unsigned i = 0; i < 4; ++i) launch(0, first, second, i);
        hand_over(0, 1);
        for (unsigned i = 0; i < 4; ++i) launch(1, second, first, i);
        hand_over(1, 0);
    }

    void launch(int in, unsigned* words, const unsigned* others, unsigned number) {
        work<<<kBlocks, kThreads, 0, streams[in]>>>(words, others, addend, number);
        check("launch", cudaGetLastError());
    }

    void hand_over(int from, int to) {
        check("cudaEventRecord", cudaEventRecord(turn, streams[from]));
        check("cudaStreamWaitEvent", cudaStreamWaitEvent(streams[to], turn, 0));
    }

    // Enqueues a round, and waits for the one before it.
    void round(unsigned number) {
        check("cudaMemcpyAsync",
              cudaMemcpyAsync(addend, &number, sizeof number, cudaMemcpyHostToDevice, streams[0]));
        check("cudaMemsetAsync", cudaMemsetAsync(second + number % kWords, static_cast<int>(number), 64, streams[0]));
        if (graph != nullptr) check("cudaGraphLaunch", cudaGraphLaunch(graph, streams[0]));
        else launch_all();
        if (number % kShortLife == kShortLife - 1) use_other_memory();
        check("cudaMemcpyAsync", cudaMemcpyAsync(seen + number % 2 * kSeen, second, kSeen * sizeof *seen,
                                                 cudaMemcpyDeviceToHost, streams[0]));
        check("cudaEventRecord", cudaEventRecord(done[number % 2], streams[0]));
        if (number > 0) look(number - 1);
    }

    void commit(int which) {
        fault<<<1, 1, 1024, streams[0]>>>(which, first, 0x3fffffffu / sizeof(unsigned));
        check("launch", cudaGetLastError());
        emit("injected");
    }

    void look(unsigned number) {
        check("cudaEventSynchronize", cudaEventSynchronize(done[number % 2]));
        digest.add(seen + number % 2 * kSeen, kSeen);
    }

    void use_other_memory() {
        unsigned* other = nullptr;
        check("cudaMalloc", cudaMalloc(&other, kWords * sizeof *other));
        check("cudaMemcpyAsync",
              cudaMemcpyAsync(other, first, kWords * sizeof *other, cudaMemcpyDeviceToDevice, streams[0]));
        launch(0, other, second, 1);
        check("cudaMemcpyAsync",
              cudaMemcpyAsync(first, other, kWords * sizeof *other, cudaMemcpyDeviceToDevice, streams[0]));
        check("cudaFree", cudaFree(other));
    }

    uint64_t result(unsigned rounds) {
        std::vector<unsigned> values(kWords);
        unsigned long long count = 0;
        look(rounds - 1);
        read_total<<<1, 1, 0, streams[0]>>>(counter);
        check("launch", cudaGetLastError());
        check("cudaDeviceSynchronize", cudaDeviceSynchronize());
        check("cudaMemcpy", cudaMemcpy(&count, counter, sizeof count, cudaMemcpyDeviceToHost));
        for (const unsigned* words : {first, second}) {
            check("cudaMemcpy", cudaMemcpy(values.data(), words, kWords * sizeof *words, cudaMemcpyDeviceToHost));
            digest.add(values.data(), kWords);
        }
        const unsigned halves[2] = {static_cast<unsigned>(count), static_cast<unsigned>(count >> 32)};
        digest.add(halves, 2);
        return digest.value;
    }
};

bool line_came() {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) == 1) {
        if (byte == '\n') return true;
    }
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    const unsigned rounds = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : kRounds;
    const bool captured = argc > 2 && std::strcmp(argv[2], "graph") == 0;
    int which = -1;
    for (int i = 0; argc > 2 && i < 3; ++i) {
        if (std::strcmp(argv[2], kFaults[i]) == 0) which = i;
    }
    if (rounds <= kFault || argc > 3 || (argc > 2 && which < 0 && !captured)) return 2;
    emit("start");
    Program program(captured);
    check("cudaDeviceSynchronize", cudaDeviceSynchronize());
    emit("idle");
    if (!line_came()) return 0;
    told = true;
    double longest = 0;
    for (unsigned number = 0; number < rounds; ++number) {
        const double begin = monotonic();
        if (which >= 0 && number == kFault) program.commit(which);
        program.round(number);
        longest = std::max(longest, monotonic() - begin);
        if (number == kBusy) emit("busy");
    }
    emit("went_on", "\"milliseconds\":%.3f", longest * 1e3);
    emit("result", "\"digest\":\"%016llx\"", static_cast<unsigned long long>(program.result(rounds)));
    emit("finished");
    return 0;
}
