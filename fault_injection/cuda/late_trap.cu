// A CUDA client with a kernel that runs for a while and then traps, whether or not its process still lives.
//
//   late_trap SECONDS
//
// Events (json_line.h): first_kernel; then, after a line on standard input, injected (in_flight), and died (code) if the
// process still lives when the kernel traps. Exit status: 2 usage, 3 died, 4 failed (call, code).

#include <atomic>
#include <cstdlib>

#include <unistd.h>

#include "busy.cuh"
#include "ending.h"
#include "json_line.h"

__global__ void late_trap(volatile unsigned int* running, unsigned long long length) {
    const unsigned long long begin = busy::nanoseconds();
    *running = 1;
    __threadfence_system();
    while (busy::nanoseconds() - begin < length) {
    }
    __trap();
}

int main(int argc, char** argv) {
    if (argc != 2) ending::leave(ending::kUsage);
    const double seconds = std::atof(argv[1]);
    unsigned int* running = nullptr;
    ending::require("cudaHostAlloc", cudaHostAlloc(&running, sizeof *running, cudaHostAllocMapped));
    *running = 0;
    unsigned int* on_device = nullptr;
    ending::require("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&on_device, running, 0));
    { busy::Kernel first(0.001); }
    ending::require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    json_line::emit("first_kernel");
    char byte;
    if (read(STDIN_FILENO, &byte, 1) != 1) ending::leave(0);
    late_trap<<<1, 1>>>(on_device, static_cast<unsigned long long>(seconds * 1e9));
    const double begin = json_line::monotonic();
    while (std::atomic_ref(*running).load() == 0) {
        if (json_line::monotonic() - begin > busy::kStart) ending::failed("the kernel does not start", 0, nullptr);
        usleep(200);
    }
    json_line::emit("injected", "\"in_flight\":1");
    const cudaError_t error = cudaDeviceSynchronize();
    json_line::emit("died", "\"code\":%d,\"name\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error));
    ending::leave(ending::kDied);
}
