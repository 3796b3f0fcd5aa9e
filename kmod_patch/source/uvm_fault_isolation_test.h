/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* A test of the sinks, beside those that uvm_enable_builtin_tests=1 makes available. */
#ifndef __UVM_FAULT_ISOLATION_TEST_H__
#define __UVM_FAULT_ISOLATION_TEST_H__

#include "uvm_test_ioctl.h"

/*
 * Contain faults that no access took: at an address of the calling VA space where
 * nothing is mapped, on a GPU that it has registered. It is poisoned then, and
 * accesses of its channels to that address are absorbed, which is for the
 * caller to see.
 *
 * uvm_fault_isolation=2 is needed, unless the VA space shares a TSG.
 */
#define UVM_TEST_FAULT_ISOLATION                         UVM_TEST_IOCTL_BASE(200)
typedef struct
{
    NvProcessorUuid gpu_uuid;                            // In
    NvU64 address                    NV_ALIGN_BYTES(8);  // In
    NV_STATUS rmStatus;                                  // Out
} UVM_TEST_FAULT_ISOLATION_PARAMS;

#if defined(__KERNEL__)
struct file;

NV_STATUS uvm_fault_isolation_test(UVM_TEST_FAULT_ISOLATION_PARAMS *params, struct file *filp);
#endif

#endif
