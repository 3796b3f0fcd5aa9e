// What an allocation costs: the time of cudaMalloc and of cudaFree, and the memory taken beyond what was asked for.
//
//   allocation_cost BYTES COUNT ROUNDS
//
// Allocates COUNT times BYTES, frees them again, ROUNDS times; the first round is not counted. One event "cost" at the
// end: allocate, free (median seconds a call), allocate_worst, free_worst, asked, taken (bytes while all are held, by
// what cudaMemGetInfo says is free), left (bytes still taken after the last round).

#include <algorithm>
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

template <class Call>
double timed(Call call) {
    const double begin = monotonic();
    call();
    return monotonic() - begin;
}

}  // namespace

int main(int argc, char** argv) {
    const size_t bytes = argc == 4 ? std::strtoull(argv[1], nullptr, 10) : 0;
    const size_t count = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 0;
    const size_t rounds = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 0;
    if (bytes == 0 || count == 0 || rounds < 2) {
        std::fprintf(stderr, "usage: allocation_cost BYTES COUNT ROUNDS (at least 2)\n");
        ending::leave(ending::kUsage);
    }
    require("cudaFree", cudaFree(nullptr));
    std::vector<void*> held(count);
    std::vector<double> allocate, free_again;
    size_t before = 0, taken = 0;
    for (size_t round = 0; round < rounds; ++round) {
        before = round == 0 ? free_bytes() : before;
        for (void*& memory : held)
            allocate.push_back(timed([&] { require("cudaMalloc", cudaMalloc(&memory, bytes)); }));
        taken = before - free_bytes();
        for (void* memory : held) free_again.push_back(timed([&] { require("cudaFree", cudaFree(memory)); }));
        if (round > 0) continue;
        allocate.clear();
        free_again.clear();
    }
    const size_t left = before - free_bytes();
    const double worst_allocate = *std::max_element(allocate.begin(), allocate.end());
    const double worst_free = *std::max_element(free_again.begin(), free_again.end());
    json_line::emit("cost",
                    "\"allocate\":%.9f,\"free\":%.9f,\"allocate_worst\":%.9f,\"free_worst\":%.9f,\"asked\":%zu,"
                    "\"taken\":%zu,\"left\":%zd",
                    median(allocate), median(free_again), worst_allocate, worst_free, bytes * count, taken,
                    static_cast<ssize_t>(left));
    return 0;
}
