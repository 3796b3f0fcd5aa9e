// One JSON object a line on standard output: how the CUDA programs here report what they see.
//
// Every line has `event`, `pid`, `monotonic` and `realtime` (seconds; the same clocks as Python's time.monotonic() and
// time.time(), so a reader in another process can compare them), then what the event itself says.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <unistd.h>

namespace json_line {

// Seconds on the given clock.
inline double seconds(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

inline double monotonic() { return seconds(CLOCK_MONOTONIC); }

// Prints one event at once.
inline void emit(const char* event) {
    std::printf("{\"event\":\"%s\",\"pid\":%d,\"monotonic\":%.6f,\"realtime\":%.6f}\n", event,
                static_cast<int>(getpid()), monotonic(), seconds(CLOCK_REALTIME));
    std::fflush(stdout);
}

// The same with further members: `members` is a printf format of them ("\"code\":%d"). Strings in it must need no
// escaping (the names used here are identifiers).
__attribute__((format(printf, 2, 3))) inline void emit(const char* event, const char* members, ...) {
    std::printf("{\"event\":\"%s\",\"pid\":%d,\"monotonic\":%.6f,\"realtime\":%.6f,", event, static_cast<int>(getpid()),
                monotonic(), seconds(CLOCK_REALTIME));
    va_list arguments;
    va_start(arguments, members);
    std::vprintf(members, arguments);
    va_end(arguments);
    std::fputs("}\n", stdout);
    std::fflush(stdout);
}

}  // namespace json_line
