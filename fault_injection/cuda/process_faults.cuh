// Ends of a process that its kernels did not expect, and a kernel that does not end.
#pragma once

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <sys/resource.h>

#include "busy.cuh"
#include "memory_faults.cuh"

namespace faults::process {

constexpr double kInFlight = 1.0;  // seconds, by default: a dead process' kernel delays the others no longer than this
constexpr double kEndless = 30.0;  // the harness ends the process long before; if the harness is gone, this does
constexpr size_t kHoard = size_t{512} << 20;  // more than the memory cgroup of the harness has, less than hurts a machine

// What the faults of this process leave on the GPU, and for how long; the caller may set `seconds` before.
struct InFlight {
    std::optional<double> seconds;
    std::optional<busy::Kernel> kernel;

    void start(double otherwise) {
        const double length = seconds.value_or(otherwise);
        kernel.emplace(length);
        json_line::emit("running", "\"seconds\":%.6f", length);
    }

    bool runs() const { return kernel && kernel->runs(); }
};

inline InFlight in_flight;

inline void die_of(int number) {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);  // the fault is the death: writing a core file of a CUDA process takes seconds
    std::signal(number, SIG_DFL);
    raise(number);
}

inline Commit killed_busy() {
    in_flight.start(kInFlight);
    return [] { die_of(SIGKILL); };
}

inline Commit killed_idle() {
    return [] { die_of(SIGKILL); };
}

inline Commit segv() {
    in_flight.start(kInFlight);
    return [] { die_of(SIGSEGV); };
}

// Takes memory until the kernel ends the process; where nothing limits it, the process goes on and says so.
inline Commit out_of_memory() {
    in_flight.start(kInFlight);
    return [] {
        constexpr size_t step = 1 << 20;
        for (size_t taken = 0; taken < kHoard; taken += step) {
            void* memory = std::malloc(step);
            if (memory == nullptr) break;
            std::memset(memory, 1, step);
        }
        ending::failed("no memory cgroup ended the process", 0, nullptr);
    };
}

inline Commit exit_busy() {
    in_flight.start(kInFlight);
    return [] { std::exit(0); };
}

inline Commit exit_idle() {
    return [] { std::exit(0); };
}

inline Commit endless() {
    return [] { in_flight.start(kEndless); };
}

}  // namespace faults::process
