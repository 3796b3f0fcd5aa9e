/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Sinks: where the contained accesses of a client go. A sink is a range of
 * entries in the page tables of one GPU VA space that resolve to nothing, or,
 * with uvm_fault_isolation_real_sink, all to one page.
 */
#ifndef __UVM_FAULT_ISOLATION_SINK_H__
#define __UVM_FAULT_ISOLATION_SINK_H__

#include "uvm_forward_decl.h"
#include "nvstatus.h"

/*
 * Make a fault's address resolve. va_range is where it lies: an external range,
 * a managed one, or NULL.
 *
 * NV_OK: a sink was placed. NV_WARN_NOTHING_TO_DO: there is one that the access
 * has not seen yet. NV_WARN_MORE_PROCESSING_REQUIRED: it is the turn of others,
 * the access is to be replayed and will fault again; NV_ERR_BUSY_RETRY: so it
 * is, for its range is being changed. NV_ERR_INSUFFICIENT_RESOURCES: the client
 * has as much as it may have. NV_ERR_INVALID_STATE: it faults in spite of the
 * sink that it has. Anything else: it cannot be done.
 *
 * LOCKING: as uvm_fault_isolation_contain().
 */
NV_STATUS uvm_fault_isolation_sink_place(uvm_gpu_va_space_t *gpu_va_space,
                                         uvm_va_range_t *va_range,
                                         const uvm_fault_buffer_entry_t *fault);

/*
 * The page directory is unset and nothing translates any more: entries need
 * not be cleared before they are freed.
 */
void uvm_fault_isolation_sinks_free(uvm_gpu_va_space_t *gpu_va_space);

#endif
