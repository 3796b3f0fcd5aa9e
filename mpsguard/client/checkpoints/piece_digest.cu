// BLAKE3 of pieces of 2 MiB of GPU memory: one block of 256 threads for each piece.
//
// A piece has 2048 chunks of 1 KiB. The threads hash 256 chunks at a time, one each, and combine their values in a
// tree; the eight trees of a piece are combined at its end. A driver of any CUDA version loads piece_digest.ptx, which
// is made of this file by scripts/make-piece-digest.
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

// `first`: address of a region. `pieces`: index of each block's piece in it. `digests`: 32 bytes for each block.
extern "C" __global__ void __launch_bounds__(THREADS)
    mpsguard_piece_digests(const uint4* first, const u32* pieces, u32* digests) {
    // By word, then by thread: neighbours in different banks.
    __shared__ u32 values[WORDS][THREADS];
    __shared__ u32 roots[TREES][WORDS];
    const u32 thread = threadIdx.x;
    const uint4* piece = first + (u64)pieces[blockIdx.x] * (TREES * THREADS * 64);
    u32 h[WORDS], m[16];
    for (u32 tree = 0; tree < TREES; tree++) {
        const u32 chunk = tree * THREADS + thread;
        const uint4* data = piece + (u64)chunk * 64;
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
        // The nodes of the tree, level by level; behind the last tree, the piece's own three levels as well.
        u32 nodes = THREADS / 2;
#pragma unroll 1
        while (nodes) {
            const bool mine = thread < nodes;
            if (mine) {
                for (int i = 0; i < WORDS; i++) m[i] = values[i][2 * thread], m[i + 8] = values[i][2 * thread + 1];
                begin(h);
                compress(h, m, 0u, PARENT | (nodes == 1 && tree == TREES ? ROOT : 0u));
            }
            __syncthreads();
            if (mine) {
                if (nodes == 1)
                    for (int i = 0; i < WORDS; i++) roots[tree % TREES][i] = h[i];
                else
                    for (int i = 0; i < WORDS; i++) values[i][thread] = h[i];
            }
            __syncthreads();
            nodes /= 2;
            if (!nodes && tree == TREES - 1) {
                // Once more, over the roots.
                if (thread < TREES)
                    for (int i = 0; i < WORDS; i++) values[i][thread] = roots[thread][i];
                __syncthreads();
                nodes = TREES / 2;
                tree = TREES;
            }
        }
    }
    if (thread < WORDS) digests[(u64)blockIdx.x * WORDS + thread] = roots[0][thread];
}
