// A kernel that keeps the GPU busy until it is let go or its time is over, and says when it runs.
#pragma once

#include <atomic>
#include <new>

#include <cuda_runtime.h>
#include <time.h>

#include "ending.h"

namespace busy {

constexpr double kStart = 5.0;  // seconds in which a kernel must have started

// What the kernel and the host tell each other, in host memory that both see.
struct Signals {
    unsigned int running;  // written by the kernel, at its start
    unsigned int over;     // written by the kernel, at its end
    unsigned int let_go;   // written by the host
};

__device__ inline unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__global__ void busy_kernel(volatile Signals* signals, unsigned long long limit) {
    const unsigned long long begin = nanoseconds();
    signals->running = 1;
    __threadfence_system();
    while (!signals->let_go && nanoseconds() - begin < limit) {
    }
    signals->over = 1;
}

// The limit is kept by the kernel itself: what a dead process left behind must end too.
class Kernel {
  public:
    // Starts it and returns once it runs.
    explicit Kernel(double seconds, cudaStream_t stream = nullptr) {
        void* memory = nullptr;
        ending::require("cudaHostAlloc", cudaHostAlloc(&memory, sizeof(Signals), cudaHostAllocMapped));
        signals_ = new (memory) Signals{};
        Signals* on_device = nullptr;
        ending::require("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&on_device, memory, 0));
        busy_kernel<<<1, 1, 0, stream>>>(on_device, static_cast<unsigned long long>(seconds * 1e9));
        ending::require("busy kernel", cudaGetLastError());
        const double begin = json_line::monotonic();
        while (std::atomic_ref(signals_->running).load() == 0) {
            if (json_line::monotonic() - begin > kStart) ending::failed("busy kernel does not start", 0, nullptr);
            const timespec pause = {0, 200'000};
            nanosleep(&pause, nullptr);
        }
    }

    // Whether it runs now; it has started, so it does unless it is over.
    bool runs() const { return std::atomic_ref(signals_->over).load() == 0; }

    void let_go() { std::atomic_ref(signals_->let_go).store(1); }

  private:
    Signals* signals_ = nullptr;  // never freed: the kernel may outlive this object
};

}  // namespace busy
