// SPDX-License-Identifier: MIT OR GPL-2.0
/* RM that takes its time, when a test says so: what of nvidia-uvm waits for it must not wait as well. */
#include <linux/atomic.h>
#include <linux/sched/signal.h>
#include <linux/wait.h>

#include "mock_gpu.h"

static DECLARE_WAIT_QUEUE_HEAD(stalled_queue);
static const struct file *stalled_by;
static atomic_t waiting = ATOMIC_INIT(0);

void mock_stall(const struct file *owner, struct mock_stall *wanted)
{
	WRITE_ONCE(stalled_by, wanted->on ? owner : NULL);
	wake_up_all(&stalled_queue);
	wanted->waiting = atomic_read(&waiting);
}

/* A test that dies leaves no stall behind. */
void mock_end_stall_of(const struct file *owner)
{
	if (READ_ONCE(stalled_by) == owner) {
		WRITE_ONCE(stalled_by, NULL);
		wake_up_all(&stalled_queue);
	}
}

/* False if the caller's process is being killed. */
bool mock_wait_while_stalled(void)
{
	int killed;

	atomic_inc(&waiting);
	killed = wait_event_killable(stalled_queue, !READ_ONCE(stalled_by));
	atomic_dec(&waiting);
	return !killed;
}
