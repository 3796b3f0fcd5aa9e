// A CUDA client like any other: runtime API, a loop of kernels. It knows nothing of mpsguard; it only reports.
//
//   worker [--seconds S] [--work N] [--controlled [--rounds N]] [--blocking] [--memory BYTES] [--managed]
//          [--fault NAME [--at S] [--in-flight S]]
//
//   --seconds S      loop for S seconds (default 1; 0: end after the first kernel)
//   --work N         length of the dependent chain in each kernel (default 200: about 20 us; 4000: about 0.1 ms)
//   --controlled     wait for a line on standard input before the loop, and end the loop early when it closes
//   --rounds N       loop N times (default 1), each time after a line of its own
//   --blocking       sleep while a kernel runs, where CUDA by itself would spin: for more clients than cores
//   --memory BYTES   hold this much GPU memory besides (default 0), written to once
//   --managed        let the kernels of the loop work on managed memory
//   --fault NAME     commit this fault (faults.cuh) ...
//   --at S           ... S seconds into the loop (default 0); --fault-at is the same
//   --in-flight S    length of the kernel that a fault of the process leaves on the GPU (default: process_faults.cuh)
//
// Events (json_line.h), in order: start, init_begin, init_end, context (mps: what the device attribute says),
// first_kernel, begin, second (one each second: iterations, max_gap); with --rounds, begin again for each and behind it
// round (iterations, seconds, max_gap); for a fault: fault (it is prepared), running (seconds:
// the kernel in flight is on the GPU, for that long in all), injected (just before its launch: the clocks to measure
// from; in_flight: whether that kernel still runs), error (code, name: what the synchronisation after it returned, 0 for
// success; missing if it never did); and last one of
//   finished  iterations, seconds, max_gap, of the last round
//   died      code, name: the CUDA error that ended the loop
//   failed    code, name, call: no context, no first kernel, e.g. 807 from cuInit while an MPS server recovers; or a
//             fault that cannot be prepared here
// Exit status: 0 finished, 2 usage, 3 died, 4 failed.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <thread>

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include "ending.h"
#include "faults.cuh"
#include "json_line.h"

namespace {

using ending::kDied;
using ending::kUsage;
using ending::leave;
using ending::require;
using json_line::emit;
using json_line::monotonic;

constexpr int kThreads = 256, kBlocks = 4096;

struct Options {
    double seconds = 1.0;
    int work = 200;
    int rounds = 1;
    bool controlled = false, blocking = false, managed = false;
    const faults::Fault* fault = nullptr;
    double fault_at = 0.0;
    size_t memory = 0;
};

// One multiply-add chain an element: arithmetic only, so that its time does not depend on what others do to the memory.
__global__ void work_kernel(float* data, int steps) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = data[i];
    for (int step = 0; step < steps; ++step) x = x * 1.0001f + 0.5f;
    data[i] = x;
}

[[noreturn]] void usage(const char* complaint) {
    std::fprintf(stderr, "worker: %s\nfaults:", complaint);
    for (const faults::Fault& fault : faults::table) std::fprintf(stderr, " %s", fault.name);
    std::fputc('\n', stderr);
    leave(kUsage);
}

double number(const char* text) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || value < 0) usage("a number that is not negative is expected");
    return value;
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const char* name = argv[i];
        if (std::strcmp(name, "--controlled") == 0) {
            options.controlled = true;
            continue;
        }
        if (std::strcmp(name, "--blocking") == 0) {
            options.blocking = true;
            continue;
        }
        if (std::strcmp(name, "--managed") == 0) {
            options.managed = true;
            continue;
        }
        if (i + 1 == argc) usage("an unknown option, or one without its value");
        const char* value = argv[++i];
        if (std::strcmp(name, "--seconds") == 0) options.seconds = number(value);
        else if (std::strcmp(name, "--work") == 0) options.work = static_cast<int>(number(value));
        else if (std::strcmp(name, "--rounds") == 0) options.rounds = static_cast<int>(number(value));
        else if (std::strcmp(name, "--at") == 0 || std::strcmp(name, "--fault-at") == 0) options.fault_at = number(value);
        else if (std::strcmp(name, "--memory") == 0) options.memory = static_cast<size_t>(number(value));
        else if (std::strcmp(name, "--in-flight") == 0) faults::process::in_flight.seconds = number(value);
        else if (std::strcmp(name, "--fault") == 0) {
            options.fault = faults::find(value);
            if (options.fault == nullptr) usage("no such fault");
        } else usage("an unknown option");
    }
    if (options.rounds < 1) usage("at least one round is expected");
    return options;
}

// Standard input as two signals: each line releases the loop once, the end asks it to stop and never to begin again.
struct Control {
    std::counting_semaphore<> go{0};
    std::atomic<bool> stop{false};

    void listen(int rounds) {
        std::thread([this, rounds] {
            char byte;
            while (read(STDIN_FILENO, &byte, 1) == 1) {  // not stdio: its lock would be held when main returns
                if (byte == '\n') go.release();
            }
            stop = true;
            go.release(rounds);
        }).detach();
    }
};

struct Progress {
    double begin = 0, last = 0;             // monotonic seconds: loop start, last kernel that came back
    double max_gap = 0, max_gap_began = 0;  // longest time between two kernels coming back
    long iterations = 0;

    void kernel_done(double now) {
        ++iterations;
        if (now - last > max_gap) {
            max_gap = now - last;
            max_gap_began = last;
        }
        last = now;
    }
};

void report(const char* event, const Progress& p) {
    emit(event, "\"iterations\":%ld,\"seconds\":%.6f,\"max_gap\":%.6f,\"max_gap_began\":%.6f", p.iterations,
         monotonic() - p.begin, p.max_gap, p.max_gap_began);
}

[[noreturn]] void die(cudaError_t error, const Progress& p) {
    emit("died", "\"code\":%d,\"name\":\"%s\",\"iterations\":%ld,\"last_success\":%.6f,\"max_gap\":%.6f",
         static_cast<int>(error), cudaGetErrorName(error), p.iterations, p.last, p.max_gap);
    leave(kDied);
}

void commit_fault(const faults::Fault& fault, const Progress& progress) {
    emit("fault", "\"kind\":\"%s\"", fault.name);
    const faults::Commit commit = fault.prepare();
    emit("injected", "\"kind\":\"%s\",\"in_flight\":%d", fault.name, faults::process::in_flight.runs() ? 1 : 0);
    commit();
    const cudaError_t error = cudaDeviceSynchronize();
    emit("error", "\"code\":%d,\"name\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error));
    if (error != cudaSuccess) die(error, progress);
    // Some SM faults report success to the culprit: the loop goes on until the server's death reaches it.
}

Progress loop(const Options& options, float* data, const Control& control) {
    Progress progress;
    progress.begin = progress.last = monotonic();
    Progress second = progress;
    bool fault_due = options.fault != nullptr;
    emit("begin");
    while (monotonic() - progress.begin < options.seconds && !control.stop) {
        work_kernel<<<kBlocks, kThreads>>>(data, options.work);
        const cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaSuccess) die(error, progress);
        const double now = monotonic();
        progress.kernel_done(now);
        second.kernel_done(now);
        if (now - second.begin >= 1.0) {
            report("second", second);
            second = Progress{now, now};
        }
        if (fault_due && now - progress.begin >= options.fault_at) {
            fault_due = false;
            commit_fault(*options.fault, progress);
        }
    }
    return progress;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    static Control control;  // outlives main's frame: the listening thread is never joined
    emit("start");
    emit("init_begin");
    require("cuInit", cuInit(0));
    emit("init_end");
    if (options.blocking) require("cudaSetDeviceFlags", cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    require("cudaFree", cudaFree(nullptr));  // creates the primary context, as a program's first runtime call does
    int mps = -1;
    require("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, 0));
    emit("context", "\"mps\":%d", mps);

    float* data = nullptr;
    const size_t size = sizeof(float) * kBlocks * kThreads;
    if (options.managed) require("cudaMallocManaged", cudaMallocManaged(&data, size));
    else require("cudaMalloc", cudaMalloc(&data, size));
    require("cudaMemset", cudaMemset(data, 0, size));
    if (options.memory > 0) {
        void* memory = nullptr;
        require("cudaMalloc", cudaMalloc(&memory, options.memory));
        require("cudaMemset", cudaMemset(memory, 1, options.memory));
    }
    work_kernel<<<kBlocks, kThreads>>>(data, options.work);
    require("first kernel", cudaDeviceSynchronize());
    emit("first_kernel");

    if (options.controlled) control.listen(options.rounds);
    Progress progress;
    for (int round = 0; round < options.rounds; ++round) {
        if (options.controlled) control.go.acquire();
        progress = loop(options, data, control);
        if (options.rounds > 1) report("round", progress);
    }
    report("finished", progress);
    return 0;  // the normal way out, with CUDA's own teardown
}
