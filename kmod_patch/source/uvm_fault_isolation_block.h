/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A sink in a block of managed memory or of HMM, which keeps page tables of its
 * own: all of the block becomes one, in the tables that it has.
 */
#ifndef __UVM_FAULT_ISOLATION_BLOCK_H__
#define __UVM_FAULT_ISOLATION_BLOCK_H__

#include "uvm_forward_decl.h"
#include "nvstatus.h"

/*
 * Unmap the block from the GPU, and make the entries sparse that the GPU reads
 * now. To the block they are unmapped: whatever it does with them later (map a
 * page, split or merge entries, free them) is right, and at worst ends the
 * sink. The memory stays what it is, to the CPU and to other GPUs.
 *
 * NV_WARN_NOTHING_TO_DO: it has no page tables for that GPU.
 *
 * LOCKING: the VA space lock must be held, for read at least.
 */
NV_STATUS uvm_fault_isolation_block_sink(uvm_gpu_va_space_t *gpu_va_space, uvm_va_block_t *va_block);

#endif
