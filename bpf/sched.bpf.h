/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Scheduler: time off the CPU, and how much of it a task was ready to run. */
#include "batches.h"

static __always_inline void leave_cpu(struct task_state *task, struct task_struct *prev,
				      bool preempt, u64 now)
{
	bool runnable = preempt || is_runnable(prev);

	task->off_ns = now;
	task->wake_ns = runnable ? now : 0;
	if (BPF_CORE_READ_BITFIELD(prev, in_iowait))
		task->flags |= OFF_IOWAIT;
	else
		task->flags &= ~OFF_IOWAIT;
}

/* A period off the CPU counts in the step in which it ends. */
static __always_inline void take_cpu(struct task_state *task, u64 now)
{
	u64 off = now - task->off_ns, wait = task->flags & OFF_IOWAIT ? off : 0;
	u32 class = task->call ? task->class : TOBS_OTHER;
	struct account to = account_of(task);
	u64 ready = task->wake_ns ? now - task->wake_ns : 0;

	add(to, TOBS_OFFCPU, class, 1, 0, off, wait);
	task->wait_ns += wait;
	if (makes_batch(task))
		sleep_in_batch(task, off, ready, class);
	if (task->wake_ns) {
		add(to, TOBS_RUNQUEUE, class, 1, 0, ready, 0);
		observe(to, TOBS_RUNQUEUE, TOBS_OTHER, ready);
	}
	task->off_ns = 0;
	task->wake_ns = 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(tobs_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct task_state *task = state_of(prev);
	u64 now = 0;

	if (task) {
		now = bpf_ktime_get_ns();
		leave_cpu(task, prev, preempt, now);
	}
	task = state_of(next);
	if (task && task->off_ns)
		take_cpu(task, now ? now : bpf_ktime_get_ns());
	return 0;
}

static __always_inline int woken(struct task_struct *waking)
{
	struct task_state *task = state_of(waking);

	/* A task that runs, or that waits for a CPU already, may be woken too. */
	if (task && task->off_ns && !task->wake_ns)
		task->wake_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(tobs_wakeup, struct task_struct *waking)
{
	return woken(waking);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(tobs_wakeup_new, struct task_struct *waking)
{
	return woken(waking);
}
