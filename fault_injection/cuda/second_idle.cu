// A CUDA program that knows nothing of mpsguard: it computes, is idle until it is told, and computes on.
//
//   second_idle
//
// Runtime API, with what many programs use of it: three streams and events between them, pinned memory, a __constant__
// that the host writes, a __device__ table, a __device__ counter that kernels change, a kernel with more dynamic shared
// memory than the default allows, and a product by cuBLAS (not if it is compiled with NO_BLAS). Being idle, it waits for a
// line on standard input; the end of the input ends it.
//
// Events (json_line.h), in order: start, idle, went_on (milliseconds: from the line until the first kernel after it had
// ended), result (digest: of every bit that it computed; total: the counter), and last one of
//   finished
//   died      code, name, call: the CUDA error after the line
//   failed    code, name, call: the CUDA error before it
// Exit status: 0 finished, 3 died, 4 failed.

#include <cstdint>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>
#include <unistd.h>
#ifndef NO_BLAS
#include <cublas_v2.h>
#endif

#include "ending.h"
#include "json_line.h"

namespace {

using json_line::emit;
using json_line::monotonic;

constexpr size_t kWords = size_t{1} << 22;
constexpr int kThreads = 256, kRounds = 20;
constexpr int kSharedBytes = 70000, kMostSharedBytes = 100000;

bool told = false;  // whether the line has come

__device__ unsigned long long total;
__constant__ unsigned factors[4];
__device__ unsigned addends[5] = {1, 2, 3, 4, 5};

__global__ void mix(unsigned* words, size_t count, unsigned round) {
    const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i >= count) return;
    words[i] = words[i] * factors[round % 4] + round + addends[round % 5];
    if (i == 0) atomicAdd(&total, words[0]);
}

__global__ void flip(unsigned* words, size_t count) {
    const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i < count) words[i] ^= 0x1234567u;
}

__global__ void reverse(unsigned* words) {
    extern __shared__ unsigned kept[];
    kept[threadIdx.x] = words[threadIdx.x];
    __syncthreads();
    words[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}

__global__ void read_total(unsigned long long* out) { *out = total; }

void ended_by(const char* call, int code, const char* name) {
    if (!told) ending::failed(call, code, name);
    emit("died", "\"code\":%d,\"name\":\"%s\",\"call\":\"%s\"", code, name, call);
    ending::leave(ending::kDied);
}

void check(const char* call, cudaError_t error) {
    if (error != cudaSuccess) ended_by(call, static_cast<int>(error), cudaGetErrorName(error));
}

struct Program {
    unsigned *words = nullptr, *pinned = nullptr;
    cudaStream_t streams[3];
    cudaEvent_t mixed, flipped;

    Program() {
        check("cudaMalloc", cudaMalloc(&words, kWords * sizeof *words));
        for (cudaStream_t& stream : streams) {
            check("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        }
        check("cudaEventCreate", cudaEventCreateWithFlags(&mixed, cudaEventDisableTiming));
        check("cudaEventCreate", cudaEventCreate(&flipped));
        check("cudaMallocHost", cudaMallocHost(&pinned, kWords * sizeof *pinned));
        for (size_t i = 0; i < kWords; ++i) pinned[i] = static_cast<unsigned>(i * 2654435761u);
        const unsigned values[4] = {3, 5, 7, 11};
        check("cudaMemcpyToSymbol", cudaMemcpyToSymbol(factors, values, sizeof values));
        check("cudaMemcpyAsync",
              cudaMemcpyAsync(words, pinned, kWords * sizeof *words, cudaMemcpyHostToDevice, streams[0]));
        check("cudaFuncSetAttribute",
              cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes));
    }

    void round(unsigned number) {
        const unsigned blocks = kWords / kThreads;
        mix<<<blocks, kThreads, 0, streams[0]>>>(words, kWords, number);
        check("launch", cudaGetLastError());
        check("cudaEventRecord", cudaEventRecord(mixed, streams[0]));
        check("cudaStreamWaitEvent", cudaStreamWaitEvent(streams[1], mixed, 0));
        flip<<<blocks, kThreads, 0, streams[1]>>>(words, kWords);
        check("launch", cudaGetLastError());
        check("cudaEventRecord", cudaEventRecord(flipped, streams[1]));
        check("cudaStreamWaitEvent", cudaStreamWaitEvent(streams[0], flipped, 0));
        reverse<<<1, 1024, kSharedBytes, streams[0]>>>(words);
        check("launch", cudaGetLastError());
    }

    // What all rounds have made of the memory, by a copy into the pinned memory.
    const unsigned* result() {
        check("cudaMemcpyAsync",
              cudaMemcpyAsync(pinned, words, kWords * sizeof *words, cudaMemcpyDeviceToHost, streams[2]));
        check("cudaStreamSynchronize", cudaStreamSynchronize(streams[2]));
        return pinned;
    }
};

#ifdef NO_BLAS
struct Product {
    void multiply() {}
    std::vector<float> result() { return {}; }
};
#else
struct Product {
    static constexpr int kWidth = 512;
    static constexpr size_t kBytes = sizeof(float) * kWidth * kWidth;
    cublasHandle_t handle = nullptr;
    float *a = nullptr, *b = nullptr, *c = nullptr;

    Product() {
        require("cublasCreate", cublasCreate(&handle));
        std::vector<float> values(kWidth * kWidth);
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) / 101.0f;
        for (float** matrix : {&a, &b, &c}) {
            check("cudaMalloc", cudaMalloc(matrix, kBytes));
            check("cudaMemcpy", cudaMemcpy(*matrix, values.data(), kBytes, cudaMemcpyHostToDevice));
        }
    }

    static void require(const char* call, cublasStatus_t status) {
        if (status == CUBLAS_STATUS_SUCCESS) return;
        // The CUDA error behind it says more, where there is one.
        check(call, cudaDeviceSynchronize());
        ended_by(call, static_cast<int>(status), "cublas");
    }

    void multiply() {
        const float one = 1, half = 0.5f;
        // The last product is in the next one.
        require("cublasSgemm", cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, kWidth, kWidth, kWidth, &one, a, kWidth, b,
                                           kWidth, &half, c, kWidth));
    }

    std::vector<float> result() {
        std::vector<float> values(kWidth * kWidth);
        check("cudaMemcpy", cudaMemcpy(values.data(), c, kBytes, cudaMemcpyDeviceToHost));
        return values;
    }
};
#endif

unsigned long long counted() {
    unsigned long long *out = nullptr, value = 0;
    check("cudaMalloc", cudaMalloc(&out, sizeof *out));
    read_total<<<1, 1>>>(out);
    check("launch", cudaGetLastError());
    check("cudaMemcpy", cudaMemcpy(&value, out, sizeof value, cudaMemcpyDeviceToHost));
    check("cudaFree", cudaFree(out));
    return value;
}

// FNV-1a over units of 32 bits.
struct Digest {
    uint64_t value = 1469598103934665603u;

    void add(const void* data, size_t words) {
        for (size_t i = 0; i < words; ++i) {
            uint32_t word;
            std::memcpy(&word, static_cast<const char*>(data) + i * sizeof word, sizeof word);
            value = (value ^ word) * 1099511628211u;
        }
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

int main() {
    emit("start");
    Program program;
    Product product;
    for (unsigned number = 0; number < kRounds; ++number) {
        program.round(number);
        product.multiply();
    }
    check("cudaDeviceSynchronize", cudaDeviceSynchronize());
    emit("idle");
    if (!line_came()) return 0;
    told = true;
    const double begin = monotonic();
    program.round(kRounds);
    check("cudaEventSynchronize", cudaEventSynchronize(program.mixed));
    emit("went_on", "\"milliseconds\":%.3f", (monotonic() - begin) * 1e3);
    product.multiply();
    for (unsigned number = kRounds + 1; number < 2 * kRounds; ++number) {
        program.round(number);
        product.multiply();
    }
    check("cudaDeviceSynchronize", cudaDeviceSynchronize());
    const unsigned long long counter = counted();
    Digest digest;
    digest.add(program.result(), kWords);
    digest.add(&counter, sizeof counter / sizeof(uint32_t));
    const std::vector<float> products = product.result();
    digest.add(products.data(), products.size());
    emit("result", "\"digest\":\"%016llx\",\"total\":%llu", static_cast<unsigned long long>(digest.value), counter);
    emit("finished");
    return 0;
}
