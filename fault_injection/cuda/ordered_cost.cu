// What a pair of cudaMallocAsync and cudaFreeAsync costs.
//
//   ordered_cost BYTES PAIRS ROUNDS
//
// Times ROUNDS rounds of PAIRS pairs in one stream, in three ways; the first round of each is not counted. One event
// "ordered" at the end, with the median seconds of a pair: pair (nothing in between), kept (the stream is synchronised
// after each, and the pool's release threshold keeps all memory), released (the same under the default threshold, a
// twentieth of the pairs). left: bytes still taken when all is freed and synchronised under the default threshold.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#include "cost.cuh"
#include "ending.h"
#include "json_line.h"

namespace {

using cost::free_bytes;
using cost::median;
using ending::require;
using json_line::monotonic;

double median_of_rounds(size_t bytes, size_t pairs, size_t rounds, cudaStream_t stream, bool synchronize) {
    std::vector<double> found;
    for (size_t round = 0; round < rounds; ++round) {
        const double begin = monotonic();
        for (size_t pair = 0; pair < pairs; ++pair) {
            void* memory = nullptr;
            require("cudaMallocAsync", cudaMallocAsync(&memory, bytes, stream));
            require("cudaFreeAsync", cudaFreeAsync(memory, stream));
            if (synchronize) require("cudaStreamSynchronize", cudaStreamSynchronize(stream));
        }
        if (round > 0) found.push_back((monotonic() - begin) / static_cast<double>(pairs));
        require("cudaStreamSynchronize", cudaStreamSynchronize(stream));
    }
    return median(found);
}

void set_threshold(cudaMemPool_t pool, std::uint64_t bytes) {
    require("cudaMemPoolSetAttribute", cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &bytes));
}

}  // namespace

int main(int argc, char** argv) {
    const size_t bytes = argc == 4 ? std::strtoull(argv[1], nullptr, 10) : 0;
    const size_t pairs = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 0;
    const size_t rounds = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 0;
    if (bytes == 0 || pairs < 20 || rounds < 2) {
        std::fprintf(stderr, "usage: ordered_cost BYTES PAIRS ROUNDS (at least 20 and 2)\n");
        ending::leave(ending::kUsage);
    }
    cudaMemPool_t pool = nullptr;
    cudaStream_t stream = nullptr;
    require("cudaFree", cudaFree(nullptr));
    require("cudaDeviceGetDefaultMemPool", cudaDeviceGetDefaultMemPool(&pool, 0));
    require("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const size_t before = free_bytes();
    const double pair = median_of_rounds(bytes, pairs, rounds, stream, false);
    const double released = median_of_rounds(bytes, pairs / 20, rounds, stream, true);
    const size_t after = free_bytes();
    set_threshold(pool, UINT64_MAX);
    const double kept = median_of_rounds(bytes, pairs, rounds, stream, true);
    json_line::emit("ordered", "\"pair\":%.9f,\"kept\":%.9f,\"released\":%.9f,\"left\":%zd", pair, kept, released,
                    static_cast<ssize_t>(before - after));
    return 0;
}
