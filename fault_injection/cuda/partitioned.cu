// A CUDA client on SMs of its own: what tells whether the place that Xid 13 names can tell one client from another.
//
//   partitioned GROUP GROUPS [--fault]
//
// The GPU's SMs are split into GROUPS equal groups (cuDevSmResourceSplitByCount, the same way in every process), and a
// green context uses group GROUP. Events (json_line.h): context (sms: how many), then, after a line on standard input
// and 50 ms, with --fault: injected, error (code); last one of finished, died (code), failed (call, code).
// Exit status: 0 finished, 2 usage, 3 died, 4 failed.

#include <cstdlib>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include "ending.h"
#include "json_line.h"

namespace {

using ending::kDied;
using ending::kUsage;
using ending::leave;
using ending::require;
using json_line::emit;
using json_line::monotonic;

constexpr double kSeconds = 1.5;
constexpr int kMaxGroups = 16;
constexpr unsigned kGranularity = 8;  // SMs come in groups of eight on Hopper (CUDA programming guide, green contexts)

__global__ void spin_kernel(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}

__global__ void misaligned_kernel(char* address) { *reinterpret_cast<volatile int*>(address + 1) = 1; }

CUstream stream_of(int group, int groups) {
    CUdevice device;
    require("cuInit", cuInit(0));
    require("cuDeviceGet", cuDeviceGet(&device, 0));
    CUcontext primary;
    require("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&primary, device));
    require("cuCtxSetCurrent", cuCtxSetCurrent(primary));
    CUdevResource all, parts[kMaxGroups], rest;
    require("cuDeviceGetDevResource", cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    unsigned count = groups;
    const unsigned each = all.sm.smCount / groups / kGranularity * kGranularity;
    require("cuDevSmResourceSplitByCount", cuDevSmResourceSplitByCount(parts, &count, &all, &rest, 0, each));
    if (static_cast<unsigned>(group) >= count) require("cuDevSmResourceSplitByCount", CUDA_ERROR_INVALID_VALUE);
    CUdevResourceDesc description;
    require("cuDevResourceGenerateDesc", cuDevResourceGenerateDesc(&description, &parts[group], 1));
    CUgreenCtx green;
    require("cuGreenCtxCreate", cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    CUcontext context;
    require("cuCtxFromGreenCtx", cuCtxFromGreenCtx(&context, green));
    require("cuCtxSetCurrent", cuCtxSetCurrent(context));
    CUstream stream;
    require("cuGreenCtxStreamCreate", cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    emit("context", "\"sms\":%u", parts[group].sm.smCount);
    return stream;
}

}  // namespace

int main(int argc, char** argv) {
    const bool fault = argc == 4 && std::strcmp(argv[3], "--fault") == 0;
    const int group = argc > 2 ? std::atoi(argv[1]) : -1, groups = argc > 2 ? std::atoi(argv[2]) : 0;
    if ((argc != 3 && !fault) || group < 0 || groups < 1 || groups > kMaxGroups) leave(kUsage);
    emit("start");
    const CUstream stream = stream_of(group, groups);
    char* memory = nullptr;
    require("cudaMalloc", cudaMalloc(&memory, 64));
    spin_kernel<<<64, 32, 0, stream>>>(100000);
    require("first kernel", cudaStreamSynchronize(stream));
    emit("first_kernel", "\"group\":%d", group);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n') {}
    const double begin = monotonic();
    bool committed = !fault;
    while (monotonic() - begin < kSeconds) {
        if (!committed && monotonic() - begin > 0.05) {
            committed = true;
            emit("injected", "\"kind\":\"misaligned\"");
            misaligned_kernel<<<1, 1, 0, stream>>>(memory);
            const cudaError_t error = cudaStreamSynchronize(stream);
            emit("error", "\"code\":%d,\"name\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error));
        }
        spin_kernel<<<256, 32, 0, stream>>>(200000);
        const cudaError_t error = cudaStreamSynchronize(stream);
        if (error != cudaSuccess) {
            emit("died", "\"code\":%d,\"name\":\"%s\"", static_cast<int>(error), cudaGetErrorName(error));
            leave(kDied);
        }
    }
    emit("finished", "\"iterations\":0,\"seconds\":%.6f", monotonic() - begin);
    leave(0);
}
