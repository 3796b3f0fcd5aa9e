// Two clients of opposite kinds, without any library: one that asks for little and at once, one that fills the GPU.
//
//   spin probe [--seconds S]                 a kernel of 10 us each millisecond
//   spin load [--seconds S] [--block-us N]   kernels of 10 ms, one behind the other, of blocks of N us (default 100)
//
// Each line on standard input is a round of S seconds (default 1); the end of the input ends the program. Events
// (json_line.h): start, context (sms), first_kernel, then for each round begin and round: of the probe
// latencies_us (a list: from the launch until the kernel is seen to have ended), of the load blocks and seconds; last
// finished or failed. Exit status: 0 finished, 2 usage, 4 failed.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include "ending.h"
#include "json_line.h"

namespace {

using ending::kUsage;
using ending::leave;
using ending::require;
using json_line::emit;
using json_line::monotonic;

constexpr int kThreads = 1024, kBlocksOfAnSm = 2;  // 2048 threads: an SM has room for no more
constexpr double kLoadSeconds = 0.010, kProbeSeconds = 10e-6, kEvery = 0.001;

__global__ void spin_kernel(unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}

void launch(int blocks, int threads, double seconds) {
    spin_kernel<<<blocks, threads>>>(static_cast<unsigned long long>(seconds * 1e9));
    require("launch", cudaGetLastError());
}

void probe(double seconds) {
    std::string latencies;
    const double end = monotonic() + seconds;
    for (double due = monotonic(); due < end; due = std::max(due + kEvery, monotonic())) {
        const double left = due - monotonic();
        if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
        const double begin = monotonic();
        launch(1, 32, kProbeSeconds);
        require("cudaDeviceSynchronize", cudaDeviceSynchronize());
        latencies += (latencies.empty() ? "" : ",") + std::to_string(static_cast<long>((monotonic() - begin) * 1e6));
    }
    emit("round", "\"latencies_us\":[%s]", latencies.c_str());
}

void load(double seconds, double block, int sms) {
    const int blocks = std::max(1, static_cast<int>(kLoadSeconds / block)) * sms * kBlocksOfAnSm;
    cudaEvent_t ended[2];
    for (cudaEvent_t& event : ended) {
        require("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
    }
    const double begin = monotonic();
    long kernels = 0;
    for (; monotonic() - begin < seconds; ++kernels) {
        // The next kernel is queued before this one ends: the GPU never waits for the host.
        cudaEvent_t& event = ended[kernels % 2];
        if (kernels >= 2) require("cudaEventSynchronize", cudaEventSynchronize(event));
        launch(blocks, kThreads, block);
        require("cudaEventRecord", cudaEventRecord(event));
    }
    require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    emit("round", "\"blocks\":%ld,\"seconds\":%.6f", kernels * blocks, monotonic() - begin);
}

[[noreturn]] void usage() {
    std::fputs("usage: spin probe|load [--seconds S] [--block-us N]\n", stderr);
    leave(kUsage);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || (std::strcmp(argv[1], "probe") != 0 && std::strcmp(argv[1], "load") != 0)) usage();
    const bool probes = std::strcmp(argv[1], "probe") == 0;
    double seconds = 1.0, block = 100e-6;
    for (int i = 2; i < argc; i += 2) {
        const double value = i + 1 < argc ? std::atof(argv[i + 1]) : 0;
        if (value <= 0) usage();
        if (std::strcmp(argv[i], "--seconds") == 0) seconds = value;
        else if (std::strcmp(argv[i], "--block-us") == 0) block = value * 1e-6;
        else usage();
    }
    emit("start");
    require("cuInit", cuInit(0));
    int sms = 0;
    require("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    require("cudaFree", cudaFree(nullptr));
    emit("context", "\"sms\":%d", sms);
    launch(1, 32, kProbeSeconds);
    require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    emit("first_kernel");
    char byte;
    while (read(STDIN_FILENO, &byte, 1) == 1) {
        if (byte != '\n') continue;
        emit("begin");
        if (probes) probe(seconds);
        else load(seconds, block, sms);
    }
    emit("finished");
    return 0;
}
