"""The digest kernels: their source, run on the processor with a thread for each of the GPU's, against BLAKE3."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from blake3 import blake3

from mpsguard.images.checkpoints import pieces
from mpsguard.images.checkpoints.pieces import PIECE

SOURCE = Path(pieces.__file__).with_name("piece_digest.cu")
HARNESS = """
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>
struct uint4 { unsigned x, y, z, w; };
struct index3 { unsigned x; };
static thread_local index3 threadIdx;
static index3 blockIdx;
static std::barrier<> together(256);
static void __syncthreads() { together.arrive_and_wait(); }
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(n)
#include KERNEL
template <typename Kernel> static void run(unsigned blocks, Kernel kernel) {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        std::vector<std::thread> all;
        for (unsigned n = 0; n < 256; n++) all.emplace_back([&, n] { threadIdx.x = n, kernel(); });
        for (auto &each : all) each.join();
    }
}
int main() {
    std::vector<uint4> data(3 * (2 << 20) / 16);
    if (fread(data.data(), 16, data.size(), stdin) != data.size()) return 1;
    unsigned chosen[2] = {2, 0}, trees[2 * 8 * 8], digests[24] = {};
    run(16, [&] { mpsguard_tree_values(data.data(), chosen, trees); });
    run(1, [&] { mpsguard_piece_digests(trees, digests, 2); });
    fwrite(digests, 4, 24, stdout);
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ (Debian: g++)")
@pytest.mark.slow(seconds=4, reason="compiles the kernels, and starts 4,000 threads")
def test_the_kernels_compute_blake3(tmp_path: Path) -> None:
    (tmp_path / "harness.cc").write_text(HARNESS)
    program = tmp_path / "harness"
    kernel = f'-DKERNEL="{SOURCE}"'
    command = ["g++", "-std=c++20", "-O1", "-w", "-pthread", kernel, "-o", str(program), str(tmp_path / "harness.cc")]
    subprocess.run(command, check=True, timeout=100)
    data = random.Random(1).randbytes(3 * PIECE)
    found = subprocess.run([program], input=data, stdout=subprocess.PIPE, check=True, timeout=100).stdout
    assert found[:32] == blake3(data[2 * PIECE :]).digest()
    assert found[32:64] == blake3(data[:PIECE]).digest()
    assert found[64:] == bytes(32), "written behind the last piece"


def test_the_compiled_kernels_are_there_and_old_drivers_read_it() -> None:
    text = SOURCE.with_suffix(".ptx").read_text()
    assert ".version 6.4\n" in text
    assert ".target sm_75\n" in text
    assert ".entry mpsguard_tree_values(" in text
    assert ".entry mpsguard_piece_digests(" in text
