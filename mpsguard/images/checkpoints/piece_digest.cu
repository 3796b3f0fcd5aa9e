// BLAKE3 of pieces of 2 MiB of GPU memory, by two kernels, so that a few pieces fill the GPU, too.
//
// A piece has 2048 chunks of 1 KiB, in eight trees of 256. The first kernel has a block of 256 threads for each tree: each
// thread hashes a chunk, and the block combines their values. The second one has eight threads for each piece, which
// combine the values of its trees. A driver of any CUDA version loads piece_digest.ptx, which is made of this file by
// scripts/make-piece-digest.
#ifndef THREADS
#define THREADS 256
#endif
#define TREES 8
#define WORDS 8
#define CHUNK_START 1u
#define CHUNK_END 2u
#define PARENT 4u
#define ROOT 8u

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ static inline u32 rotated(u32 x, int n) { return (x >> n) | (x << (32 - n)); }

#define MIX(a, b, c, d, x, y)          \
    do {                               \
        v[a] = v[a] + v[b] + (x);      \
        v[d] = rotated(v[d] ^ v[a], 16); \
        v[c] = v[c] + v[d];            \
        v[b] = rotated(v[b] ^ v[c], 12); \
        v[a] = v[a] + v[b] + (y);      \
        v[d] = rotated(v[d] ^ v[a], 8); \
        v[c] = v[c] + v[d];            \
        v[b] = rotated(v[b] ^ v[c], 7); \
    } while (0)

// One round, with the words of the message in the order of that round.
#define ROUND(i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15) \
    do {                                                                            \
        MIX(0, 4, 8, 12, m[i0], m[i1]);                                             \
        MIX(1, 5, 9, 13, m[i2], m[i3]);                                             \
        MIX(2, 6, 10, 14, m[i4], m[i5]);                                            \
        MIX(3, 7, 11, 15, m[i6], m[i7]);                                            \
        MIX(0, 5, 10, 15, m[i8], m[i9]);                                            \
        MIX(1, 6, 11, 12, m[i10], m[i11]);                                          \
        MIX(2, 7, 8, 13, m[i12], m[i13]);                                           \
        MIX(3, 4, 9, 14, m[i14], m[i15]);                                           \
    } while (0)

// The compression function, for full blocks of 64 bytes and the value of the tree's node that it leaves in `h`.
__device__ static inline void compress(u32 h[WORDS], const u32 m[16], u32 counter, u32 flags) {
    u32 v[16] = {h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7],
                 0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au, counter, 0u, 64u, flags};
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ROUND(2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8);
    ROUND(3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1);
    ROUND(10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6);
    ROUND(12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4);
    ROUND(9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7);
    ROUND(11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13);
    for (int i = 0; i < WORDS; i++) h[i] = v[i] ^ v[i + 8];
}

__device__ static inline void begin(u32 h[WORDS]) {
    h[0] = 0x6A09E667u, h[1] = 0xBB67AE85u, h[2] = 0x3C6EF372u, h[3] = 0xA54FF53Au;
    h[4] = 0x510E527Fu, h[5] = 0x9B05688Cu, h[6] = 0x1F83D9ABu, h[7] = 0x5BE0CD19u;
}

__device__ static inline void combine(u32 h[WORDS], const u32 left[WORDS], const u32 right[WORDS], u32 flags) {
    u32 m[16];
    for (int i = 0; i < WORDS; i++) m[i] = left[i], m[i + WORDS] = right[i];
    begin(h);
    compress(h, m, 0u, PARENT | flags);
}

// `first`: address of a region. `pieces`: indices of pieces in it. `trees`: 32 bytes for each tree of each piece; a block
// for each of them.
extern "C" __global__ void __launch_bounds__(THREADS)
    mpsguard_tree_values(const uint4* first, const u32* pieces, u32* trees) {
    // By word, then by thread: neighbours in different banks.
    __shared__ u32 values[WORDS][THREADS];
    const u32 thread = threadIdx.x;
    const u32 chunk = blockIdx.x % TREES * THREADS + thread;
    const uint4* data = first + ((u64)pieces[blockIdx.x / TREES] * (TREES * THREADS) + chunk) * 64;
    u32 h[WORDS], m[16];
    begin(h);
#pragma unroll 1
    for (u32 block = 0; block < 16; block++) {
        for (int i = 0; i < 4; i++) {
            const uint4 four = data[block * 4 + i];
            m[4 * i] = four.x, m[4 * i + 1] = four.y, m[4 * i + 2] = four.z, m[4 * i + 3] = four.w;
        }
        compress(h, m, chunk, (block == 0 ? CHUNK_START : 0u) | (block == 15 ? CHUNK_END : 0u));
    }
    for (int i = 0; i < WORDS; i++) values[i][thread] = h[i];
    __syncthreads();
#pragma unroll 1
    for (u32 nodes = THREADS / 2; nodes; nodes /= 2) {
        if (thread < nodes) {
            u32 left[WORDS], right[WORDS];
            for (int i = 0; i < WORDS; i++) left[i] = values[i][2 * thread], right[i] = values[i][2 * thread + 1];
            combine(h, left, right, 0u);
        }
        __syncthreads();
        if (thread < nodes)
            for (int i = 0; i < WORDS; i++) values[i][thread] = h[i];
        __syncthreads();
    }
    if (thread < WORDS) trees[(u64)blockIdx.x * WORDS + thread] = values[thread][0];
}

// `trees`: as the first kernel wrote them, of `count` pieces. `digests`: 32 bytes for each piece; eight threads for each.
extern "C" __global__ void __launch_bounds__(THREADS)
    mpsguard_piece_digests(const u32* trees, u32* digests, u32 count) {
    __shared__ u32 values[THREADS][WORDS];
    const u32 tree = threadIdx.x % TREES;
    const u32 piece = blockIdx.x * (THREADS / TREES) + threadIdx.x / TREES;
    const bool is_there = piece < count;
    u32(*const own)[WORDS] = values + (threadIdx.x - tree);
    u32 h[WORDS];
    if (is_there)
        for (int i = 0; i < WORDS; i++) own[tree][i] = trees[((u64)piece * TREES + tree) * WORDS + i];
    __syncthreads();
#pragma unroll 1
    for (u32 nodes = TREES / 2; nodes; nodes /= 2) {
        const bool combines = is_there && tree < nodes;
        if (combines) combine(h, own[2 * tree], own[2 * tree + 1], nodes == 1 ? ROOT : 0u);
        __syncthreads();
        if (combines)
            for (int i = 0; i < WORDS; i++) own[tree][i] = h[i];
        __syncthreads();
    }
    if (is_there) digests[(u64)piece * WORDS + tree] = own[0][tree];
}
