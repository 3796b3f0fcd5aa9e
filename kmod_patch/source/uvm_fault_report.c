/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#include "uvm_fault_report.h"
#include "uvm_api.h"
#include "uvm_common.h"
#include "uvm_global.h"
#include "uvm_gpu.h"
#include "uvm_hal.h"
#include "uvm_procfs.h"
#include "uvm_va_space.h"
#include <linux/capability.h>
#include <linux/kobject.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/signal.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 5, 0)
#define start_boottime real_start_time
#endif

#define LIST_NAME "contained_faults"

/* Records of VA spaces that are gone; the oldest goes first. */
#define KEPT 256

static uint uvm_fault_isolation_signal = SIGBUS;
module_param(uvm_fault_isolation_signal, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_signal,
                 "Signal to a client whose fault was contained, once; 0: it is not told that it computes with junk.");

static uint uvm_fault_isolation_without_agent;
module_param(uvm_fault_isolation_without_agent, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_without_agent,
                 "1: contain faults, too, while no process has the list of contained faults open.");

/* Open descriptions of the list. Written with reports_lock held. */
static uint uvm_fault_isolation_agents;
module_param(uvm_fault_isolation_agents, uint, S_IRUGO);
MODULE_PARM_DESC(uvm_fault_isolation_agents, "Agents that have the list of contained faults open.");

/* Protects all that follows. A leaf; held for memory accesses alone. */
static DEFINE_MUTEX(reports_lock);

/* The reports of VA spaces that exist, newest first. */
static LIST_HEAD(reports);
static NvU64 reports_ever;

/* A ring. */
static uvm_fault_record_t kept[KEPT];
static NvU64 kept_ever;

/* The driver's names begin with that of their enumeration. */
static const char *without(const char *prefix, const char *name)
{
    size_t length = strlen(prefix);

    return strncmp(name, prefix, length) == 0 ? name + length : name;
}

static const char *access_name(uvm_fault_access_type_t access)
{
    return without("UVM_FAULT_ACCESS_TYPE_", uvm_fault_access_type_string(access));
}

static const char *type_name(uvm_fault_type_t type)
{
    return without("UVM_FAULT_TYPE_", uvm_fault_type_string(type));
}

static const char *engine_name(const uvm_fault_record_t *record)
{
    switch (record->engine) {
        case UVM_MMU_ENGINE_TYPE_CE:
            return "COPY";
        case UVM_MMU_ENGINE_TYPE_HOST:
            return "PBDMA";
        default:
            return "SM";
    }
}

/* Not a zombie, either: that one holds its pid, but has let go of its descriptors. */
static bool has_not_ended(struct pid *owner)
{
    struct task_struct *task;
    bool alive;

    rcu_read_lock();
    task = pid_task(owner, PIDTYPE_TGID);
    alive = task && atomic_read(&task->signal->live) > 0;
    rcu_read_unlock();

    return alive;
}

/*
 * To this very process, a struct pid is never used again for another one; and
 * to the program that made the VA space: one that the process has executed
 * since may have other rights.
 *
 * An exec that has yet to count itself can get the signal, as it can from any
 * process of its user: its new rights come after that.
 */
static void signal_program(const uvm_fault_record_t *record, int number)
{
    struct task_struct *task;

    rcu_read_lock();
    task = pid_task(record->owner, PIDTYPE_TGID);
    if (task && READ_ONCE(task->self_exec_id) == record->program)
        (void)kill_pid(record->owner, number, 1);
    rcu_read_unlock();
}

/* The pid is as the reader's pid namespace has it; 0 if the process is not in there. */
static void show_record(struct seq_file *file, const uvm_fault_record_t *record)
{
    seq_printf(file, "%llu time=%llu", record->number, record->time);
    seq_printf(file, " pid=%d", record->owner_lived ? pid_vnr(record->owner) : 0);
    seq_printf(file, " start=%llu", record->owner_lived ? record->start : 0);
    seq_printf(file, " alive=%d gone=%d", record->owner_lived, record->gone);
    seq_printf(file, " address=0x%llx", record->address);
    seq_printf(file, " access=%s type=%s", access_name(record->access), type_name(record->type));
    seq_printf(file, " engine=%s gpu=GPU-%pUb veid=%u\n", engine_name(record), record->gpu.uuid, record->veid);
}

/* The newest first, and those that exist before those that are gone: a reader that stops misses what matters least. */
static int show_list(struct seq_file *file, void *unused)
{
    uvm_fault_report_t *report;
    NvU64 back;

    mutex_lock(&reports_lock);
    list_for_each_entry(report, &reports, node)
        show_record(file, &report->record);
    for (back = 1; back <= min_t(NvU64, kept_ever, KEPT); back++)
        show_record(file, &kept[(kept_ever - back) % KEPT]);
    mutex_unlock(&reports_lock);

    return 0;
}

/*
 * An open list does not keep the module: procfs releases it when the list is removed.
 *
 * The mode lets root of any container in. It tells of all clients of the
 * machine, and to have it open is to be an agent: that is for root of the
 * machine, with its rights.
 */
static int open_list(struct inode *inode, struct file *file)
{
    int error;

    if (!capable(CAP_SYS_ADMIN))
        return -EPERM;

    error = single_open(file, show_list, NULL);
    if (error)
        return error;

    mutex_lock(&reports_lock);
    WRITE_ONCE(uvm_fault_isolation_agents, uvm_fault_isolation_agents + 1);
    mutex_unlock(&reports_lock);
    return 0;
}

static int release_list(struct inode *inode, struct file *file)
{
    mutex_lock(&reports_lock);
    WRITE_ONCE(uvm_fault_isolation_agents, uvm_fault_isolation_agents - 1);
    mutex_unlock(&reports_lock);
    return single_release(inode, file);
}

static const nv_proc_ops_t list_operations =
{
    NV_PROC_OPS_SET_OWNER()
    .NV_PROC_OPS_OPEN = open_list,
    .NV_PROC_OPS_READ = seq_read,
    .NV_PROC_OPS_LSEEK = seq_lseek,
    .NV_PROC_OPS_RELEASE = release_list,
};

NV_STATUS uvm_fault_report_init(struct proc_dir_entry *directory)
{
    if (!proc_create_data(LIST_NAME, S_IFREG | S_IRUSR, directory, &list_operations, NULL))
        return NV_ERR_OPERATING_SYSTEM;

    return NV_OK;
}

/* The list was removed with its directory: no reader is left. */
void uvm_fault_report_exit(void)
{
    size_t i;

    for (i = 0; i < KEPT; i++) {
        put_pid(kept[i].owner);
        kept[i].owner = NULL;
    }
    kept_ever = 0;
}

bool uvm_fault_report_is_heard(void)
{
    return READ_ONCE(uvm_fault_isolation_agents) || READ_ONCE(uvm_fault_isolation_without_agent);
}

static void send_uevent(const uvm_fault_record_t *record)
{
    char pid[24], start[32], access[40], type[48], engine[16], gpu[56], veid[24];
    char *environment[] = {
        "NVIDIA_UVM_EVENT=fault_contained",
        pid,
        start,
        record->owner_lived ? "ALIVE=1" : "ALIVE=0",
        access,
        type,
        engine,
        gpu,
        veid,
        NULL,
    };

    /* The pid as the first pid namespace has it. No address: every user can listen. */
    snprintf(pid, sizeof(pid), "PID=%d", record->owner_lived ? pid_nr(record->owner) : 0);
    snprintf(start, sizeof(start), "START=%llu", record->owner_lived ? record->start : 0);
    snprintf(access, sizeof(access), "ACCESS=%s", access_name(record->access));
    snprintf(type, sizeof(type), "TYPE=%s", type_name(record->type));
    snprintf(engine, sizeof(engine), "ENGINE=%s", engine_name(record));
    snprintf(gpu, sizeof(gpu), "GPU=GPU-%pUb", record->gpu.uuid);
    snprintf(veid, sizeof(veid), "VEID=%u", record->veid);
    kobject_uevent_env(&THIS_MODULE->mkobj.kobj, KOBJ_CHANGE, environment);
}

/* In the list first: an agent reads it when the uevent comes. */
static void tell(uvm_fault_report_t *report)
{
    uvm_fault_record_t *record = &report->record;
    uint number = READ_ONCE(uvm_fault_isolation_signal);

    mutex_lock(&reports_lock);
    record->owner_lived = has_not_ended(record->owner);
    record->number = ++reports_ever;
    list_add(&report->node, &reports);
    mutex_unlock(&reports_lock);

    pr_warn_ratelimited("contained a fatal fault of pid %d: %s, %s, %s, VEID %u\n",
                        record->owner_lived ? pid_nr(record->owner) : 0,
                        access_name(record->access),
                        type_name(record->type),
                        engine_name(record),
                        record->veid);
    send_uevent(record);

    if (number && record->owner_lived)
        signal_program(record, number);
}

static void tell_entry(void *report)
{
    UVM_ENTRY_VOID(tell(report));
}

void uvm_fault_report_va_space_init(uvm_va_space_t *va_space)
{
    uvm_fault_report_t *report = &va_space->isolation.report;

    report->record.owner = get_task_pid(current, PIDTYPE_TGID);
    report->record.program = READ_ONCE(current->group_leader->self_exec_id);

    /* As nsec_to_clock_t, which modules cannot call, has it. */
    report->record.start = div_u64(current->group_leader->start_boottime, NSEC_PER_SEC / USER_HZ);
    INIT_LIST_HEAD(&report->node);
    nv_kthread_q_item_init(&report->item, tell_entry, report);
}

void uvm_fault_report_va_space_deinit(uvm_va_space_t *va_space)
{
    uvm_fault_report_t *report = &va_space->isolation.report;
    struct pid *released = report->record.owner;

    mutex_lock(&reports_lock);
    if (!list_empty(&report->node)) {
        uvm_fault_record_t *place = &kept[kept_ever++ % KEPT];

        list_del_init(&report->node);
        released = place->owner;
        *place = report->record;
        place->gone = true;
    }
    mutex_unlock(&reports_lock);
    put_pid(released);
}

void uvm_fault_report_contained(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault)
{
    uvm_fault_report_t *report = &gpu_va_space->va_space->isolation.report;
    uvm_fault_record_t *record = &report->record;

    if (atomic_xchg(&report->noted, 1))
        return;

    record->time = ktime_get_ns();
    record->address = fault->fault_address;
    record->veid = fault->fault_source.ve_id;
    record->gpu = gpu_va_space->gpu->parent->uuid;
    record->access = fault->fault_access_type;
    record->type = fault->fault_type;
    record->engine = fault->fault_source.mmu_engine_type;
    nv_kthread_q_schedule_q_item(&g_uvm_global.global_q, &report->item);
}

void uvm_fault_report_stopped(const uvm_va_space_t *va_space, NV_STATUS reason)
{
    pr_warn("a client cannot be contained any further, and is stopped: pid %d, status 0x%x\n",
            pid_nr(va_space->isolation.report.record.owner),
            reason);
}
