/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Scheduler: time off the CPU, and how much of it a task was ready to run. */
#include "batches.h"
#include "file_class.h"

#if defined(__TARGET_ARCH_x86) /* arch/.../unistd.h */
#define SYS_FUTEX 202
#else
#define SYS_FUTEX 98
#endif

#define FUTEX_WAIT_BITSET 9 /* include/uapi/linux/futex.h */
#define FUTEX_PRIVATE_FLAG 128
#define SWITCH_INTERVAL_NS 5000000

/*
 * OFF_STORAGE, if a task that goes to sleep does so for storage: as the kernel says, or because of the
 * call that it is in, as where a server (NFS) or a process (FUSE) is asked. An open outside of a batch
 * may be of a named pipe. No branches, since what follows would be verified once for each.
 */
static __always_inline u32 waits_for_storage(struct task_state *task, struct task_struct *prev,
					     u32 number, u32 state)
{
	u32 waits = BPF_CORE_READ_BITFIELD(prev, in_iowait), in_batch = makes_batch(task);

	waits |= in_call(task, TOBS_OPEN) & in_batch;
	waits |= in_call(task, TOBS_READ) & (task->class == TOBS_DATA);
	waits |= in_call(task, TOBS_WRITE) & (task->class == TOBS_CHECKPOINT) &
		 !(task->flags & CALL_COPIES); /* which may read from a pipe */
	waits |= !!(machine.syscalls[number % TOBS_SYSCALLS].storage & state);
	return waits * OFF_STORAGE;
}

/* The number of the system call that the current task is in; one that no call has if it is in none. */
static __always_inline u32 current_call(struct task_struct *current)
{
	struct pt_regs *regs;

	if (!HAS_HELPER(task_pt_regs)) /* user space knows: "tobs_await" */
		return -1;
	regs = (struct pt_regs *)bpf_task_pt_regs(current);
	return is_32_bit_call(regs) || !is_inside_call(regs) ? -1 : syscall_number(regs);
}

/*
 * Whether a futex call waits for the interpreter's lock. CPython waits for that until a moment 5 ms
 * ahead, and then anew (take_gil; sys.setswitchinterval). Other waits have a far moment, or none.
 */
static __always_inline bool awaits_interpreter(struct pt_regs *regs, u64 now)
{
	u32 operation = syscall_arg(regs, 2);
	struct {
		u64 s, ns;
	} until;

	if ((operation & ~FUTEX_PRIVATE_FLAG) != FUTEX_WAIT_BITSET ||
	    bpf_probe_read_user(&until, sizeof(until), (void *)syscall_arg(regs, 4)))
		return false;
	return until.s * 1000000000 + until.ns - now <= SWITCH_INTERVAL_NS;
}

/*
 * Whether the main thread goes to sleep until another thread of its process is done, as it does for
 * one that carries out a collective, or for the interpreter's lock. In the loader's phase it sleeps
 * for workers.
 */
static __always_inline u8 awaited(struct task_state *task, struct task_struct *prev, u32 number,
				  u64 now)
{
	if (task->role != TOBS_MAIN || number != SYS_FUTEX)
		return 0;
	if (awaits_interpreter((struct pt_regs *)bpf_task_pt_regs(prev),
			       moment_of(task->slot, now)))
		return OFF_GIL;
	return current_phase(task->slot) == TOBS_PHASE_LOADER ? 0 : OFF_AWAIT;
}

static __always_inline void leave_cpu(struct task_state *task, struct task_struct *prev,
				      bool preempt, u64 now)
{
	u32 state = run_state(prev);
	bool runnable = preempt || state == TASK_RUNNING;
	u32 number;

	task->flags &= ~(OFF_AWAIT | OFF_GIL | OFF_GLOO | OFF_STORAGE);
	/* Who is stopped no longer sleeps for what the call asked for that it is in. */
	if (!runnable && state & (TASK_STOPPED | TASK_TRACED))
		task->flags |= OFF_STOPPED;
	else if (!runnable) {
		number = current_call(prev);
		task->flags |= awaited(task, prev, number, now) |
			       waits_for_storage(task, prev, number, state);
	}
	if (task->on_ns)
		add(account_of(task), TOBS_ONCPU, TOBS_OTHER, 1, 0, now - task->on_ns, 0);
	task->on_ns = 0; /* when it next gets a CPU may not be seen */
	task->off_ns = now;
	task->wake_ns = runnable ? now : 0;
}

/* What the training thread was off the CPU for, by phase. It is the one that sets the phase, so that
 * this is the phase in which it left the CPU. */
static __always_inline void count_in_phase(struct task_state *task, struct account to, u64 slept,
					   u64 ready, u64 wait)
{
	u32 phase = current_phase(task->slot);
	u8 known = task->flags & OFF_STOPPED;
	u64 unexplained = slept - wait, stopped = 0, locked = 0;

	if (known == OFF_STOPPED)
		stopped = slept;
	else if (known)
		unexplained = 0;
	if (known == OFF_GIL)
		locked = slept;

	if (phase >= TOBS_CLASSES)
		phase = TOBS_PHASE_OTHER;
	add(to, TOBS_PHASE_OFF, phase, 1, locked, slept + ready, ready);
	if (unexplained || wait)
		add(to, TOBS_PHASE_SLEEP, phase, 1, stopped, unexplained, wait);
}

/* A period off the CPU counts in the step in which it ends. */
static __always_inline void take_cpu(struct task_state *task, u64 now)
{
	u64 off = now - task->off_ns;
	u64 ready = task->wake_ns ? now - task->wake_ns : 0;
	u64 slept = off - ready; /* until it was woken: not the time it had no CPU then */
	u64 wait = slept * !!(task->flags & OFF_STORAGE);
	u32 class = class_of_call(task);
	struct account to = account_of(task);

	add(to, TOBS_OFFCPU, class, 1, 0, off, wait);
	if (task->role == TOBS_MAIN)
		count_in_phase(task, to, slept, ready, wait);
	task->wait_ns += wait;
	if (makes_batch(task))
		sleep_in_batch(task, slept, ready, wait);
	if ((task->flags & OFF_STOPPED) == OFF_AWAIT)
		add(to, TOBS_AWAIT, TOBS_OTHER, 1, task->flags & OFF_GLOO ? slept : 0, slept, 0);
	else if ((task->flags & OFF_STOPPED) == OFF_GIL)
		add(to, TOBS_AWAIT, TOBS_OTHER, 1, 0, 0, slept);
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
	if (task) {
		if (!now)
			now = bpf_ktime_get_ns();
		if (task->off_ns)
			take_cpu(task, now);
		task->on_ns = now;
	}
	return 0;
}

/* Whether the current task is a thread of gloo: pt_gloo_runloop, or gloo_tcp_loop. */
static __always_inline bool is_gloo(void)
{
	u64 name[2];

	if (bpf_get_current_comm(name, sizeof(name)))
		return false;
	return name[0] == 0x5f6f6f6c675f7470ULL /* "pt_gloo_" */ ||
	       name[0] == 0x7063745f6f6f6c67ULL /* "gloo_tcp" */;
}

/* Comes in the task that wakes; sched_wakeup may come on the CPU of the one that is woken. */
SEC("tp_btf/sched_waking")
int BPF_PROG(tobs_waking, struct task_struct *waking)
{
	struct task_state *task = state_of(waking);

	if (task && task->flags & OFF_AWAIT && !task->wake_ns && is_gloo())
		task->flags |= OFF_GLOO;
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(tobs_wakeup, struct task_struct *waking)
{
	struct task_state *task = state_of(waking);

	/* A task that runs, or that waits for a CPU already, may be woken too. */
	if (task && task->off_ns && !task->wake_ns)
		task->wake_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(tobs_wakeup_new, struct task_struct *waking)
{
	struct task_state *task = state_of(waking);

	if (task) /* its first wait for a CPU begins, off which nobody has seen it go */
		task->off_ns = task->wake_ns = bpf_ktime_get_ns();
	return 0;
}
