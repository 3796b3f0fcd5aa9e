// A CUDA client that executes another program with a kernel in flight; all that it had open of the GPU is closed by that.
//
//   exec_away SECONDS
//
// Events (json_line.h): first_kernel; then, after a line on standard input, running (seconds), injected (in_flight), and
// the process is `sleep`. Exit status: 2 usage, 4 failed (call, code).

#include <cstdlib>

#include <unistd.h>

#include "busy.cuh"
#include "ending.h"
#include "json_line.h"

int main(int argc, char** argv) {
    if (argc != 2) ending::leave(ending::kUsage);
    const double seconds = std::atof(argv[1]);
    busy::Kernel first(0.001);
    ending::require("cudaDeviceSynchronize", cudaDeviceSynchronize());
    json_line::emit("first_kernel");
    char byte;
    if (read(STDIN_FILENO, &byte, 1) != 1) ending::leave(0);
    busy::Kernel kernel(seconds);
    json_line::emit("running", "\"seconds\":%.6f", seconds);
    json_line::emit("injected", "\"in_flight\":%d", kernel.runs() ? 1 : 0);
    execl("/bin/sleep", "sleep", "60", static_cast<char*>(nullptr));
    ending::failed("execl", 0, nullptr);
}
