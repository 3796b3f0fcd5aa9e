/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#include "uvm_fault_isolation_test.h"
#include "uvm_fault_isolation.h"
#include "uvm_fault_isolation_branch.h"
#include "uvm_gpu.h"
#include "uvm_gpu_isr.h"
#include "uvm_kvmalloc.h"
#include "uvm_test.h"
#include "uvm_va_space.h"
#include "uvm_va_space_mm.h"

/* What no entry in a page table cures is refused, and leaves no trace. */
static NV_STATUS test_refusals(uvm_gpu_va_space_t *gpu_va_space, uvm_fault_buffer_entry_t *fault)
{
    fault->fault_type = UVM_FAULT_TYPE_FATAL;
    TEST_CHECK_RET(uvm_fault_isolation_contain(gpu_va_space, fault) != NV_OK);
    fault->fault_type = UVM_FAULT_TYPE_INVALID_PTE;

    fault->is_virtual = false;
    TEST_CHECK_RET(uvm_fault_isolation_contain(gpu_va_space, fault) != NV_OK);
    fault->is_virtual = true;

    TEST_CHECK_RET(uvm_fault_isolation_admit(gpu_va_space->va_space) == NV_OK);

    return NV_OK;
}

/* Of accesses to one page, more than one can have faulted before the sink was there. */
static NV_STATUS test_sink(uvm_gpu_va_space_t *gpu_va_space, uvm_fault_buffer_entry_t *fault)
{
    TEST_NV_CHECK_RET(uvm_fault_isolation_contain(gpu_va_space, fault));
    TEST_CHECK_RET(uvm_fault_isolation_admit(gpu_va_space->va_space) != NV_OK);
    TEST_NV_CHECK_RET(uvm_fault_isolation_contain(gpu_va_space, fault));

    fault->fault_address += PAGE_SIZE;
    TEST_NV_CHECK_RET(uvm_fault_isolation_contain(gpu_va_space, fault));

    return NV_OK;
}

/* In the place of the GPU's bottom half, which the caller keeps out. */
static NV_STATUS test_locked(uvm_va_space_t *va_space, uvm_gpu_t *gpu, NvU64 address)
{
    uvm_gpu_va_space_t *gpu_va_space = uvm_gpu_va_space_get(va_space, gpu);
    uvm_fault_buffer_entry_t *fault;
    NV_STATUS status;

    if (!gpu_va_space)
        return NV_ERR_INVALID_DEVICE;

    fault = uvm_kvmalloc_zero(sizeof(*fault));
    if (!fault)
        return NV_ERR_NO_MEMORY;

    fault->fault_address = UVM_PAGE_ALIGN_DOWN(address);
    fault->fault_access_type = UVM_FAULT_ACCESS_TYPE_WRITE;
    fault->fault_source.client_type = UVM_FAULT_CLIENT_TYPE_GPC;
    fault->va_space = va_space;
    fault->is_virtual = true;

    status = test_refusals(gpu_va_space, fault);
    if (status == NV_OK)
        status = test_sink(gpu_va_space, fault);

    uvm_kvfree(fault);
    return status;
}

NV_STATUS uvm_fault_isolation_test(UVM_TEST_FAULT_ISOLATION_PARAMS *params, struct file *filp)
{
    uvm_va_space_t *va_space = uvm_va_space_get(filp);
    uvm_gpu_t *gpu = uvm_va_space_retain_gpu_by_uuid(va_space, &params->gpu_uuid);
    struct mm_struct *mm;
    NV_STATUS status;

    if (!gpu)
        return NV_ERR_INVALID_DEVICE;

    UVM_ISOLATION_ISR_LOCK(gpu->parent);
    mm = uvm_va_space_mm_retain_lock(va_space);
    uvm_va_space_down_read(va_space);

    status = test_locked(va_space, gpu, params->address);

    uvm_va_space_up_read(va_space);
    uvm_va_space_mm_release_unlock(va_space, mm);
    UVM_ISOLATION_ISR_UNLOCK(gpu->parent);
    uvm_gpu_release(gpu);

    return status;
}
