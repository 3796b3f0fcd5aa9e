/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Tell of contained faults: to an agent (a list for root in procfs, and a
 * uevent that says that it has grown), and to the client (a signal).
 *
 * One record for each poisoned VA space, of its first contained fault. It
 * names the process that made the VA space by pid and start time, as both were
 * when the fault was contained, or no process at all.
 */
#ifndef __UVM_FAULT_REPORT_H__
#define __UVM_FAULT_REPORT_H__

#include "uvm_forward_decl.h"
#include "uvm_hal_types.h"
#include "nvCpuUuid.h"
#include "nvstatus.h"
#include "nv-kthread-q.h"
#include <linux/atomic.h>
#include <linux/list.h>

struct pid;
struct proc_dir_entry;

typedef struct
{
    /* Thread group that made the VA space; the record holds a reference. */
    struct pid *owner;

    /* When that began, in clock ticks after boot: field 22 of /proc/PID/stat. */
    NvU64 start;

    /* Which of the programs that it executed was running then (self_exec_id, 32 bits before Linux 5.7). */
    NvU64 program;

    /* 1 for the first record since the module was loaded. */
    NvU64 number;

    /* Of the fault; nanoseconds of CLOCK_MONOTONIC. */
    NvU64 time;
    NvU64 address;
    NvU32 veid;

    /* The GPU by its UUID: the client can unregister it before the record is read. */
    NvProcessorUuid gpu;
    uvm_fault_access_type_t access;
    uvm_fault_type_t type;
    uvm_mmu_engine_type_t engine;

    /* The owner had not ended when the fault was reported: until then, its pid was no other process's. */
    bool owner_lived;

    /* The VA space is gone. */
    bool gone;
} uvm_fault_record_t;

/* In uvm_va_space_t. */
typedef struct
{
    /* 0 until a bottom half has taken it upon itself to report the first fault. */
    atomic_t noted;

    nv_kthread_q_item_t item;

    /* Written before the item is scheduled, and by the item. */
    uvm_fault_record_t record;

    /* In the list from the report until the VA space ends. */
    struct list_head node;
} uvm_fault_report_t;

/* Of the module, with its directory in procfs; the end is harmless without the beginning. */
NV_STATUS uvm_fault_report_init(struct proc_dir_entry *directory);
void uvm_fault_report_exit(void);

/* Of a VA space. The current process is its owner. */
void uvm_fault_report_va_space_init(uvm_va_space_t *va_space);

/*
 * No report runs any more: containment ended when the VA space lost its GPUs,
 * and the global queue was flushed after that (uvm_va_space_destroy).
 */
void uvm_fault_report_va_space_deinit(uvm_va_space_t *va_space);

/*
 * Is there an agent that will do something about a poisoned client? One that
 * has the list open; or it is said that none is needed.
 */
bool uvm_fault_report_is_heard(void);

/* A fault has been contained. Bottom half; waits for nothing. */
void uvm_fault_report_contained(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault);

/* A client that cannot be contained any further is stopped. It is in the list already; the log says why it ends. */
void uvm_fault_report_stopped(const uvm_va_space_t *va_space, NV_STATUS reason);

#endif
