/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#include "uvm_fault_isolation.h"
#include "uvm_fault_isolation_block.h"
#include "uvm_fault_isolation_branch.h"
#include "uvm_fault_isolation_sink.h"
#include "uvm_common.h"
#include "uvm_gpu.h"
#include "uvm_hal.h"
#include "uvm_hmm.h"
#include "uvm_kvmalloc.h"
#include "uvm_map_external.h"
#include "uvm_mem.h"
#include "uvm_mmu.h"
#include "uvm_push.h"
#include "uvm_range_tree.h"
#include "uvm_user_channel.h"
#include "uvm_va_block.h"
#include "uvm_va_range.h"
#include "uvm_va_space.h"
#include <linux/atomic.h>
#include <linux/log2.h>
#include <linux/module.h>

static uint uvm_fault_isolation_max_sinks = 4096;
module_param(uvm_fault_isolation_max_sinks, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_max_sinks, "Sinks that one client can have on one GPU at a time.");

static uint uvm_fault_isolation_max_kib = 65536;
module_param(uvm_fault_isolation_max_kib, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_max_kib,
                 "Memory for page tables of sinks, in KiB, that one client can have on one GPU.");

static uint uvm_fault_isolation_real_sink;
module_param(uvm_fault_isolation_real_sink, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_real_sink,
                 "Make sinks of a page of video memory instead of sparse entries: atomics and read-after-write work.");

/* Of all clients, at present. */
static atomic64_t all_sinks = ATOMIC64_INIT(0), all_bytes = ATOMIC64_INIT(0);

static int show_sinks(char *buffer, const struct kernel_param *unused)
{
    return scnprintf(buffer, PAGE_SIZE, "%lld\n", (long long)atomic64_read(&all_sinks));
}

static int show_kib(char *buffer, const struct kernel_param *unused)
{
    return scnprintf(buffer, PAGE_SIZE, "%lld\n", (long long)atomic64_read(&all_bytes) >> 10);
}

static const struct kernel_param_ops sinks_ops = { .get = show_sinks };
static const struct kernel_param_ops kib_ops = { .get = show_kib };
module_param_cb(uvm_fault_isolation_sinks, &sinks_ops, NULL, S_IRUGO);
MODULE_PARM_DESC(uvm_fault_isolation_sinks, "Sinks of all clients at present.");
module_param_cb(uvm_fault_isolation_sinks_kib, &kib_ops, NULL, S_IRUGO);
MODULE_PARM_DESC(uvm_fault_isolation_sinks_kib, "Memory for their page tables, in KiB: on the GPU and in the kernel.");

/*
 * A client that strays far gets larger sinks: if there were enough faults in an
 * aligned block of 2 MiB << 4 * LEVEL, all of the hole in it is covered with
 * 2 MiB entries. Enough is MIN_WEIGHT, or so many that a fault pays for no more
 * than TABLES_A_FAULT page tables, each of which holds the entries of 512 MiB.
 */
#define LEVELS 5
#define LEVEL_SHIFT 4
#define MIN_WEIGHT 16
#define TABLES_A_FAULT 8
#define TABLE_COVERAGE (512ULL << 20)

/* So many new ones in a pass over the fault buffer, or others would wait for a client with many. */
#define SINKS_A_PASS 64

/* So often blocks can have undone a client's sinks; then the client is stopped. */
#define MOST_RENEWALS 4096

/*
 * A sink holds references to the page tables it is in. One over a mapping
 * shares them with the mapping, whose end clears the entries. One in a block can
 * be in the block's own tables, and has none then; the block can undo it at any
 * time.
 */
typedef struct
{
    uvm_range_tree_node_t node;
    uvm_page_table_range_vec_t *vec;
    NvU64 bytes;

    /* Faults that went into it, and into the smaller ones that it took the place of. */
    NvU64 weight;

    /* The pass over the replayable fault buffer in which it was placed. */
    NvU32 pass;

    /* Non-replayable faults that were reported before it was placed, and met it. */
    NvU32 late;
    enum
    {
        IN_HOLE,
        OVER_MAPPING,
        IN_BLOCK,
    } kind;
} sink_t;

/*
 * No two overlap. The bottom half of the GPU alone changes the tree; where the
 * VA space has HMM, with blocks_lock held, so that a block of HMM and a sink
 * cannot be made for the same address.
 */
struct uvm_fault_isolation_sinks_struct
{
    uvm_range_tree_t tree;
    NvU64 count;
    NvU64 bytes;
    NvU32 pass;
    NvU32 placed_in_pass;
    NvU32 renewals;

    /* Only with uvm_fault_isolation_real_sink. */
    uvm_mem_t *page;
};

/* What a hole is between: ranges and blocks of HMM, either of them or NULL; and its outermost limits. */
typedef struct
{
    uvm_range_tree_t *ranges;
    uvm_range_tree_t *blocks;
    NvU64 first;
    NvU64 last;
} surroundings_t;

static sink_t *sink_of(uvm_range_tree_node_t *node)
{
    return node ? container_of(node, sink_t, node) : NULL;
}

static void lock_tree(uvm_va_space_t *va_space)
{
    if (uvm_hmm_is_enabled(va_space))
        uvm_mutex_lock(&va_space->hmm.blocks_lock);
}

static void unlock_tree(uvm_va_space_t *va_space)
{
    if (uvm_hmm_is_enabled(va_space))
        uvm_mutex_unlock(&va_space->hmm.blocks_lock);
}

static uvm_fault_isolation_sinks_t *sinks_of(uvm_gpu_va_space_t *gpu_va_space)
{
    uvm_fault_isolation_sinks_t *sinks = gpu_va_space->isolation.sinks;

    if (!sinks) {
        sinks = uvm_kvmalloc_zero(sizeof(*sinks));
        if (!sinks)
            return NULL;
        uvm_range_tree_init(&sinks->tree);
        smp_store_release(&gpu_va_space->isolation.sinks, sinks);
    }

    return sinks;
}

static NvU64 sparse_pte(uvm_page_table_range_vec_t *range_vec, NvU64 offset, void *unused)
{
    return range_vec->tree->hal->make_sparse_pte();
}

/* Every entry points at the one page. */
static NvU64 real_pte(uvm_page_table_range_vec_t *range_vec, NvU64 offset, void *page)
{
    uvm_gpu_phys_address_t address = uvm_mem_gpu_physical(page, range_vec->tree->gpu, 0, UVM_PAGE_SIZE_64K);

    return range_vec->tree->hal->make_pte(address.aperture,
                                          address.address,
                                          UVM_PROT_READ_WRITE_ATOMIC,
                                          UVM_MMU_PTE_FLAGS_CACHED);
}

/* A page of zeros in video memory; NULL if it cannot be had, and sparse entries have to do. */
static uvm_mem_t *real_page(uvm_gpu_t *gpu, uvm_fault_isolation_sinks_t *sinks)
{
    uvm_mem_t *page = sinks->page;
    uvm_push_t push;
    NV_STATUS status;

    if (page || !READ_ONCE(uvm_fault_isolation_real_sink))
        return page;

    status = uvm_mem_alloc_vidmem(UVM_PAGE_SIZE_64K, gpu, &page);
    if (status != NV_OK)
        return NULL;

    status = uvm_push_begin(gpu->channel_manager, UVM_CHANNEL_TYPE_GPU_INTERNAL, &push, "Zero the sink page");
    if (status == NV_OK) {
        gpu->parent->ce_hal->memset_8(&push,
                                      uvm_mem_gpu_address_copy(page, gpu, 0, UVM_PAGE_SIZE_64K),
                                      0,
                                      UVM_PAGE_SIZE_64K);
        status = uvm_push_end_and_wait(&push);
    }
    if (status != NV_OK) {
        uvm_mem_free(page);
        return NULL;
    }

    sinks->page = page;
    return page;
}

static NvU64 directory_bytes(uvm_page_tree_t *tree, const uvm_page_directory_t *directory, NvU64 page_size)
{
    NvU64 host = sizeof(*directory);

    if (directory->depth < tree->hal->page_table_depth(UVM_PAGE_SIZE_AGNOSTIC))
        host += sizeof(directory->entries[0]) * tree->hal->entries_per_index(directory->depth)
                << tree->hal->index_bits(directory->depth, page_size);

    return directory->phys_alloc.size + roundup_pow_of_two(host);
}

/*
 * What a new sink costs: itself, and those page tables, on the GPU and in the
 * kernel, that are there for it alone.
 */
static NvU64 sink_bytes(uvm_page_tree_t *tree, const uvm_page_table_range_vec_t *vec)
{
    NvU64 bytes = sizeof(sink_t) + sizeof(*vec) + vec->range_count * sizeof(vec->ranges[0]);
    size_t i;

    uvm_mutex_lock(&tree->lock);
    for (i = 0; i < vec->range_count; i++) {
        const uvm_page_directory_t *directory = vec->ranges[i].table;
        NvU32 ours = vec->ranges[i].entry_count;

        for (; directory->host_parent && directory->ref_count == ours; directory = directory->host_parent, ours = 1)
            bytes += directory_bytes(tree, directory, vec->page_size);
    }
    uvm_mutex_unlock(&tree->lock);

    return bytes;
}

static void account(uvm_fault_isolation_sinks_t *sinks, const sink_t *sink, bool more)
{
    NvS64 bytes = more ? sink->bytes : -(NvS64)sink->bytes;
    NvS64 one = more ? 1 : -1;

    sinks->count += one;
    sinks->bytes += bytes;
    atomic64_add(one, &all_sinks);
    atomic64_add(bytes, &all_bytes);
}

static void free_sink(uvm_fault_isolation_sinks_t *sinks, sink_t *sink)
{
    account(sinks, sink, false);
    uvm_page_table_range_vec_destroy(sink->vec);
    uvm_kvfree(sink);
}

void uvm_fault_isolation_sinks_free(uvm_gpu_va_space_t *gpu_va_space)
{
    uvm_fault_isolation_sinks_t *sinks = gpu_va_space->isolation.sinks;
    uvm_range_tree_node_t *node, *next;

    if (!sinks)
        return;

    gpu_va_space->isolation.sinks = NULL;
    uvm_range_tree_for_each_safe(node, next, &sinks->tree)
        free_sink(sinks, sink_of(node));
    uvm_mem_free(sinks->page);
    uvm_kvfree(sinks);
}

/* The smaller sinks in [start, end] go, for one that covers it all. What they weighed. */
static NvU64 absorb(uvm_fault_isolation_sinks_t *sinks, NvU64 start, NvU64 end, struct list_head *absorbed)
{
    uvm_range_tree_node_t *node, *next;
    NvU64 weight = 0;

    uvm_range_tree_for_each_in_safe(node, next, &sinks->tree, start, end) {
        if (node->start >= start && node->end <= end) {
            uvm_range_tree_remove(&sinks->tree, node);
            list_add(&node->list, absorbed);
            weight += sink_of(node)->weight;
        }
    }

    return weight;
}

/* What others undid, and another is to take the place of. */
static void take_away(uvm_va_space_t *va_space, uvm_fault_isolation_sinks_t *sinks, NvU64 start, NvU64 end)
{
    uvm_range_tree_node_t *node, *next;
    LIST_HEAD(absorbed);

    lock_tree(va_space);
    (void)absorb(sinks, start, end, &absorbed);
    unlock_tree(va_space);

    list_for_each_entry_safe(node, next, &absorbed, list)
        free_sink(sinks, sink_of(node));
}

static NV_STATUS write_sink(uvm_gpu_va_space_t *gpu_va_space, sink_t *sink, NvU64 page_size)
{
    uvm_mem_t *page = page_size <= UVM_PAGE_SIZE_64K ? gpu_va_space->isolation.sinks->page : NULL;
    NV_STATUS status = uvm_page_table_range_vec_create(&gpu_va_space->page_tables,
                                                       sink->node.start,
                                                       sink->node.end - sink->node.start + 1,
                                                       page_size,
                                                       UVM_PMM_ALLOC_FLAGS_EVICT,
                                                       &sink->vec);

    if (status != NV_OK)
        return status;

    sink->bytes = sink_bytes(&gpu_va_space->page_tables, sink->vec);

    /* Waits for the write, and for the invalidation of the TLBs that ends it. */
    status = uvm_page_table_range_vec_write_ptes(sink->vec, UVM_MEMBAR_NONE, page ? real_pte : sparse_pte, page);
    if (status != NV_OK)
        uvm_page_table_range_vec_destroy(sink->vec);

    return status;
}

/*
 * The address is in the tree before the entries are written: no block of HMM comes
 * between. A page size of 0: they are written already, by a block.
 */
static NV_STATUS place_sink(uvm_gpu_va_space_t *gpu_va_space,
                            NvU64 start,
                            NvU64 end,
                            NvU64 page_size,
                            int kind)
{
    uvm_fault_isolation_sinks_t *sinks = gpu_va_space->isolation.sinks;
    uvm_va_space_t *va_space = gpu_va_space->va_space;
    uvm_range_tree_node_t *node, *next;
    LIST_HEAD(absorbed);
    NV_STATUS status;
    sink_t *sink;

    sink = uvm_kvmalloc_zero(sizeof(*sink));
    if (!sink)
        return NV_ERR_NO_MEMORY;
    sink->node.start = start;
    sink->node.end = end;
    sink->pass = UVM_ISOLATION_PASS(gpu_va_space->gpu->parent);
    sink->kind = kind;

    lock_tree(va_space);
    sink->weight = 1 + absorb(sinks, start, end, &absorbed);
    status = uvm_range_tree_add(&sinks->tree, &sink->node);
    unlock_tree(va_space);

    /* Before the new one is written: to free their tables clears what points at these. */
    list_for_each_entry_safe(node, next, &absorbed, list)
        free_sink(sinks, sink_of(node));

    if (status != NV_OK) {
        uvm_kvfree(sink);
        return status;
    }

    status = page_size == 0 ? NV_OK : write_sink(gpu_va_space, sink, page_size);
    if (status != NV_OK) {
        lock_tree(va_space);
        uvm_range_tree_remove(&sinks->tree, &sink->node);
        unlock_tree(va_space);
        uvm_kvfree(sink);
        return status;
    }

    account(sinks, sink, true);
    return NV_OK;
}

/* Of an aligned block of `size`, the part around the address in which nothing is. */
static NV_STATUS find_hole(uvm_va_space_t *va_space,
                           const surroundings_t *around,
                           NvU64 address,
                           NvU64 size,
                           NvU64 *start,
                           NvU64 *end)
{
    NV_STATUS status;

    *start = UVM_ALIGN_DOWN(address, size);
    *end = min(*start + size - 1, around->last);
    *start = max(*start, around->first);

    status = around->ranges ? uvm_range_tree_find_hole_in(around->ranges, address, start, end) : NV_OK;
    if (status == NV_OK && around->blocks) {
        lock_tree(va_space);
        status = uvm_range_tree_find_hole_in(around->blocks, address, start, end);
        unlock_tree(va_space);
    }

    return status;
}

static NvU64 weight_in(uvm_fault_isolation_sinks_t *sinks, NvU64 start, NvU64 end)
{
    uvm_range_tree_node_t *node;
    NvU64 weight = 0;

    uvm_range_tree_for_each_in(node, &sinks->tree, start, end)
        weight += sink_of(node)->weight;

    return weight;
}

/* The page tables of 2 MiB entries for a block; its host part is the size that a directory of 2 * 256 pointers takes. */
static bool can_afford(const uvm_fault_isolation_sinks_t *sinks, NvU64 tables)
{
    return sinks->bytes + tables * (UVM_PAGE_SIZE_4K + 2 * UVM_PAGE_SIZE_4K) <=
           (NvU64)READ_ONCE(uvm_fault_isolation_max_kib) << 10;
}

/* The largest block that the faults in it pay for, and there is memory for: all of its hole that 2 MiB entries cover. */
static NV_STATUS place_large(uvm_gpu_va_space_t *gpu_va_space, const surroundings_t *around, NvU64 address)
{
    uvm_fault_isolation_sinks_t *sinks = gpu_va_space->isolation.sinks;
    NvU32 level;

    for (level = LEVELS; level > 0; level--) {
        NvU64 size = (NvU64)UVM_PAGE_SIZE_2M << (LEVEL_SHIFT * level);
        NvU64 tables = max(size / TABLE_COVERAGE, 1ULL);
        NvU64 start = UVM_ALIGN_DOWN(address, size), end, first;

        if (!can_afford(sinks, tables) ||
            weight_in(sinks, start, start + size - 1) < max((NvU64)MIN_WEIGHT, tables / TABLES_A_FAULT))
            continue;

        if (find_hole(gpu_va_space->va_space, around, address, size, &start, &end) != NV_OK)
            continue;

        /* With sizes and not ends, which can be 0. */
        first = UVM_ALIGN_UP(start, UVM_PAGE_SIZE_2M);
        size = UVM_ALIGN_DOWN(end - first + 1, UVM_PAGE_SIZE_2M);
        if (first > end || address < first || address - first >= size)
            continue;

        return place_sink(gpu_va_space, first, first + size - 1, UVM_PAGE_SIZE_2M, IN_HOLE);
    }

    return NV_WARN_NOTHING_TO_DO;
}

/* In a hole of one 2 MiB block: all of it that 64 KiB pages cover, or the small pages in the 64 KiB of the address. */
static NV_STATUS place_small(uvm_gpu_va_space_t *gpu_va_space, const surroundings_t *around, NvU64 address, int kind)
{
    uvm_va_space_t *va_space = gpu_va_space->va_space;
    NvU64 page_size = UVM_PAGE_SIZE_64K;
    NvU64 start, end, first, size;
    NV_STATUS status;

    status = find_hole(va_space, around, address, UVM_PAGE_SIZE_2M, &start, &end);
    if (status == NV_OK)
        status = uvm_range_tree_find_hole_in(&gpu_va_space->isolation.sinks->tree, address, &start, &end);
    if (status != NV_OK)
        return status;

    first = UVM_ALIGN_UP(start, page_size);
    size = UVM_ALIGN_DOWN(end - first + 1, page_size);
    if (first > end || address < first || address - first >= size) {
        page_size = UVM_PAGE_SIZE_4K;
        first = max(start, UVM_ALIGN_DOWN(address, UVM_PAGE_SIZE_64K));
        size = min(end, UVM_ALIGN_DOWN(address, UVM_PAGE_SIZE_64K) + UVM_PAGE_SIZE_64K - 1) - first + 1;
    }

    return place_sink(gpu_va_space, first, first + size - 1, page_size, kind);
}

static NV_STATUS place_in_hole(uvm_gpu_va_space_t *gpu_va_space, const surroundings_t *around, NvU64 address)
{
    NV_STATUS status = place_large(gpu_va_space, around, address);

    return status == NV_WARN_NOTHING_TO_DO ? place_small(gpu_va_space, around, address, IN_HOLE) : status;
}

/*
 * The access faulted where a sink is. Was it on its way before the sink was
 * there? A replayable fault was if it is of the same pass, for each pass begins
 * with a flush and a replay. Non-replayable ones have no passes; but a channel
 * that waits can have two that are not serviced yet, of its engine and of its
 * host part.
 */
static bool is_late(const uvm_gpu_va_space_t *gpu_va_space, sink_t *sink, const uvm_fault_buffer_entry_t *fault)
{
    const uvm_user_channel_t *channel;
    NvU32 most = 0;

    if (fault->fault_source.client_type != UVM_FAULT_CLIENT_TYPE_HUB)
        return sink->pass == UVM_ISOLATION_PASS(gpu_va_space->gpu->parent);

    list_for_each_entry(channel, &gpu_va_space->registered_channels, list_node)
        most += 2;

    return ++sink->late <= most;
}

/*
 * Outside of all ranges. The hole stays one once the VA space is poisoned:
 * ranges are added with the VA space lock held for write, HMM's blocks with
 * blocks_lock, and both look for poison first.
 */
static NV_STATUS sink_in_no_range(uvm_gpu_va_space_t *gpu_va_space, NvU64 address, sink_t *met)
{
    uvm_va_space_t *va_space = gpu_va_space->va_space;
    surroundings_t around = {
        .ranges = &va_space->va_range_tree,
        .blocks = uvm_hmm_is_enabled(va_space) ? &va_space->hmm.blocks : NULL,
        .last = ~0ULL,
    };

    if (met && met->kind == IN_HOLE)
        return NV_ERR_INVALID_STATE;
    if (met)
        take_away(va_space, gpu_va_space->isolation.sinks, met->node.start, met->node.end);

    return place_in_hole(gpu_va_space, &around, address);
}

/*
 * In a block, which can have undone the sink that is met. If it has no page
 * tables the sink has its own, until the block gets some.
 */
static NV_STATUS sink_in_block(uvm_gpu_va_space_t *gpu_va_space, uvm_va_block_t *va_block, NvU64 address, sink_t *met)
{
    uvm_fault_isolation_sinks_t *sinks = gpu_va_space->isolation.sinks;
    surroundings_t around = { .first = va_block->start, .last = va_block->end };
    NV_STATUS status;

    if (met && sinks->renewals++ >= MOST_RENEWALS)
        return NV_ERR_INSUFFICIENT_RESOURCES;

    /* Of all of it, and before: to free their tables can clear entries above them, which the block has, too. */
    take_away(gpu_va_space->va_space, sinks, va_block->start, va_block->end);

    status = uvm_fault_isolation_block_sink(gpu_va_space, va_block);
    if (status == NV_OK)
        return place_sink(gpu_va_space, va_block->start, va_block->end, 0, IN_BLOCK);

    return status == NV_WARN_NOTHING_TO_DO ? place_small(gpu_va_space, &around, address, IN_BLOCK) : status;
}

/*
 * In an external range: a hole between its mappings, or what a mapping does not
 * permit. NV_ERR_BUSY_RETRY if the range is being changed: the thread that does
 * that holds its lock over calls of RM, and RM can be waiting for a channel that
 * waits for this very bottom half. It is not to be waited for.
 */
static NV_STATUS sink_in_external(uvm_gpu_va_space_t *gpu_va_space,
                                  uvm_va_range_t *va_range,
                                  const uvm_fault_buffer_entry_t *fault,
                                  NvU64 address,
                                  sink_t *met)
{
    uvm_ext_gpu_range_tree_t *tree = uvm_ext_gpu_range_tree(UVM_ISOLATION_EXTERNAL(va_range), gpu_va_space->gpu);
    surroundings_t around = {
        .ranges = &tree->tree,
        .first = va_range->node.start,
        .last = va_range->node.end,
    };
    uvm_range_tree_node_t *node;
    NV_STATUS status;

    if (!uvm_mutex_trylock(&tree->lock))
        return NV_ERR_BUSY_RETRY;

    node = uvm_range_tree_find(&tree->tree, address);
    if (met && (node || met->kind == IN_HOLE)) {
        status = NV_ERR_INVALID_STATE;
        goto out;
    }

    if (met)
        take_away(gpu_va_space->va_space, gpu_va_space->isolation.sinks, met->node.start, met->node.end);

    if (!node) {
        status = place_in_hole(gpu_va_space, &around, address);
    }
    else if (PAGE_SIZE > UVM_PAGE_SIZE_4K && fault->fault_type <= UVM_FAULT_TYPE_INVALID_PTE) {
        /* The access went where nothing is mapped: beside this mapping, in the same page of the CPU. */
        status = NV_ERR_INVALID_STATE;
    }
    else {
        uvm_ext_gpu_map_t *map = container_of(node, uvm_ext_gpu_map_t, node);
        NvU64 page_size = map->pt_range_vec.page_size;
        NvU64 start = UVM_ALIGN_DOWN(address, page_size);

        /*
         * The client loses sight of one page of the mapping. The memory
         * stays, and others that map it have page tables of their own.
         */
        status = uvm_tracker_wait(&map->tracker);
        if (status == NV_OK)
            status = place_sink(gpu_va_space, start, start + page_size - 1, page_size, OVER_MAPPING);
    }

out:
    uvm_mutex_unlock(&tree->lock);
    return status;
}

static NV_STATUS check_bounds(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault)
{
    uvm_fault_isolation_sinks_t *sinks = gpu_va_space->isolation.sinks;
    NvU32 pass = UVM_ISOLATION_PASS(gpu_va_space->gpu->parent);

    if (sinks->count >= READ_ONCE(uvm_fault_isolation_max_sinks) || !can_afford(sinks, 1))
        return NV_ERR_INSUFFICIENT_RESOURCES;

    if (fault->fault_source.client_type == UVM_FAULT_CLIENT_TYPE_HUB)
        return NV_OK;

    if (sinks->pass != pass) {
        sinks->pass = pass;
        sinks->placed_in_pass = 0;
    }

    return sinks->placed_in_pass++ < SINKS_A_PASS ? NV_OK : NV_WARN_MORE_PROCESSING_REQUIRED;
}

static NV_STATUS sink_small_page(uvm_gpu_va_space_t *gpu_va_space,
                                 uvm_va_range_t *va_range,
                                 const uvm_fault_buffer_entry_t *fault,
                                 NvU64 address)
{
    sink_t *met = sink_of(uvm_range_tree_find(&gpu_va_space->isolation.sinks->tree, address));
    uvm_va_block_t *va_block;
    NV_STATUS status;

    if (met && is_late(gpu_va_space, met, fault))
        return NV_WARN_NOTHING_TO_DO;

    status = check_bounds(gpu_va_space, fault);
    if (status != NV_OK)
        return status;

    if (uvm_va_block_find(gpu_va_space->va_space, address, &va_block) == NV_OK)
        return sink_in_block(gpu_va_space, va_block, address, met);

    if (va_range && va_range->type == UVM_VA_RANGE_TYPE_MANAGED)
        return NV_ERR_NOT_SUPPORTED;

    if (va_range)
        return sink_in_external(gpu_va_space, va_range, fault, address, met);

    return sink_in_no_range(gpu_va_space, address, met);
}

/* A fault tells which page of the CPU's it was in; where those are larger than 4 KiB, all of that page is covered. */
NV_STATUS uvm_fault_isolation_sink_place(uvm_gpu_va_space_t *gpu_va_space,
                                         uvm_va_range_t *va_range,
                                         const uvm_fault_buffer_entry_t *fault)
{
    uvm_fault_isolation_sinks_t *sinks = sinks_of(gpu_va_space);
    NV_STATUS result = NV_ERR_INVALID_STATE;
    NvU64 offset;

    if (!sinks)
        return NV_ERR_NO_MEMORY;

    (void)real_page(gpu_va_space->gpu, sinks);

    for (offset = 0; offset < PAGE_SIZE; offset += UVM_PAGE_SIZE_4K) {
        NV_STATUS status = sink_small_page(gpu_va_space, va_range, fault, fault->fault_address + offset);

        if (status == NV_OK || (status == NV_WARN_NOTHING_TO_DO && result != NV_OK))
            result = status;
        else if (status != NV_ERR_INVALID_STATE && status != NV_WARN_NOTHING_TO_DO)
            return status;
    }

    return result;
}

NV_STATUS uvm_fault_isolation_clip_block(uvm_va_space_t *va_space, NvU64 address, NvU64 *start, NvU64 *end)
{
    uvm_gpu_va_space_t *gpu_va_space;
    NV_STATUS status = NV_OK;

    uvm_assert_rwsem_locked(&va_space->lock);

    for_each_gpu_va_space(gpu_va_space, va_space) {
        uvm_fault_isolation_sinks_t *sinks = smp_load_acquire(&gpu_va_space->isolation.sinks);

        if (sinks && status == NV_OK)
            status = uvm_range_tree_find_hole_in(&sinks->tree, address, start, end);
    }

    return status == NV_OK ? NV_OK : NV_ERR_INVALID_ADDRESS;
}
