/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* System calls on files: read, write, fsync, open, mmap and io_uring families. */
#include "batches.h"
#include "file_class.h"

static __always_inline void begin_file_call(struct task_state *task, struct target target, u32 op)
{
	task->class = class_for_call(task, &target, op);
	if (target.kind != S_IFREG || task->class == TOBS_PSEUDO)
		return;
	task->flags = CALL_REGULAR;
	if (op == TOBS_READ && flags_of(&target) & O_DIRECT)
		task->flags |= CALL_DIRECT;
}

static __always_inline void begin_call(enum reading how, struct task_state *task,
				       struct pt_regs *regs, u32 op, u32 fd_arg)
{
	task->class = TOBS_OTHER;
	task->flags = 0;
	task->added_pages = 0;
	task->wait_ns = 0;
	if (fd_arg) {
		int fd = syscall_arg(regs, fd_arg);
		struct file *file;

		if (op == TOBS_MMAP && (fd < 0 || syscall_arg(regs, 4) & MAP_ANONYMOUS))
			return;
		task->fd = fd;
		file = file_of_fd(how, fd);
		if (file)
			begin_file_call(task, target_of(how, file), op);
	}
	task->call = op + 1;
	task->call_ns = bpf_ktime_get_ns();
}

static __always_inline int enter_call(enum reading how, struct pt_regs *regs, u64 nr)
{
	struct task_state *task;
	u32 op;

	/* The table first: it turns away most calls of the machine before any look-up. */
	if (nr >= TOBS_SYSCALLS || !syscalls[nr].op_plus_one)
		return 0;
	task = current_state();
	if (!task)
		return 0;
	op = syscalls[nr].op_plus_one - 1;
	if (op == TOBS_MARK)
		take_mark(task, regs);
	else
		begin_call(how, task, regs, op, syscalls[nr].fd_arg);
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(tobs_sys_enter, struct pt_regs *regs, long number)
{
	return enter_call(BY_LOAD, regs, number);
}

/* For kernels that refuse the one above. */
SEC("tp_btf/sys_enter")
int BPF_PROG(tobs_sys_enter_old, struct pt_regs *regs, long number)
{
	return enter_call(BY_HELPER, regs, number);
}

/* A directory is opened to list it, which is no read of what lies in it. */
static __always_inline u32 opened_class(enum reading how, struct task_state *task, long fd)
{
	struct file *file = fd < 0 ? NULL : file_of_fd(how, fd);
	struct target target;

	if (!file)
		return TOBS_OTHER;
	target = target_of(how, file);
	if (target.kind == S_IFDIR)
		return TOBS_OTHER;
	if (target.kind == S_IFREG)
		forget_if_created(task, &target);
	return class_for_call(task, &target, TOBS_OPEN);
}

/* What a read that returned data says about the page cache. A read at end of file says nothing. */
static __always_inline void count_cache(struct task_state *task, struct account to, u32 class,
					long bytes, u64 ns)
{
	u64 wanted = ((u64)bytes + (1 << PAGE_SHIFT) - 1) >> PAGE_SHIFT << PAGE_SHIFT;

	if (task->flags & CALL_DIRECT) {
		add(to, TOBS_DIRECT_READ, class, 1, bytes, ns, task->wait_ns);
		return;
	}
	if (!(task->flags & CALL_REGULAR))
		return;
	add(to, TOBS_CACHE_READ, class, 1, wanted, 0, 0);
	if (task->added_pages)
		add(to, TOBS_CACHE_MISS, class, 1, (u64)task->added_pages << PAGE_SHIFT, 0, 0);
	if (task->flags & CALL_READ_AHEAD)
		add(to, TOBS_DEMAND_MISS, class, 1, 0, ns, task->wait_ns);
}

static __always_inline int leave_call(enum reading how, struct pt_regs *regs, long result)
{
	u32 nr = syscall_number(regs), op, class;
	struct task_state *task;
	struct account to;
	u64 ns, bytes = 0;

	if (nr >= TOBS_SYSCALLS || !syscalls[nr].op_plus_one)
		return 0;
	task = current_state();
	if (!task || !task->call)
		return 0;
	ns = bpf_ktime_get_ns() - task->call_ns;
	op = task->call - 1;
	task->call = 0;
	class = op == TOBS_OPEN ? opened_class(how, task, result) : task->class;
	if (result > 0 && (op == TOBS_READ || op == TOBS_WRITE))
		bytes = result;
	else if (op == TOBS_MMAP && (unsigned long)result < -4095UL)
		bytes = syscall_arg(regs, 2);
	to = account_of(task);
	if (!to.sums)
		return 0;
	add(to, op, class, 1, bytes, ns, task->wait_ns);
	observe(to, op, class, ns);
	if (makes_batch(task) && class == TOBS_DATA && (op == TOBS_READ || op == TOBS_OPEN))
		count_in_batch(how, task, op, op == TOBS_OPEN ? result : task->fd, bytes, ns);
	if (op == TOBS_READ && bytes)
		count_cache(task, to, class, result, ns);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(tobs_sys_exit, struct pt_regs *regs, long result)
{
	return leave_call(BY_LOAD, regs, result);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(tobs_sys_exit_old, struct pt_regs *regs, long result)
{
	return leave_call(BY_HELPER, regs, result);
}

static __always_inline int uring_op(u8 opcode)
{
	switch (opcode) {
	case IORING_OP_READV:
	case IORING_OP_READ_FIXED:
	case IORING_OP_READ:
		return TOBS_URING_READ;
	case IORING_OP_WRITEV:
	case IORING_OP_WRITE_FIXED:
	case IORING_OP_WRITE:
		return TOBS_URING_WRITE;
	}
	return -1;
}

/* Three arguments since v6.10; with the seven before, the kernel refuses this program. */
SEC("tp_btf/io_uring_complete")
int BPF_PROG(tobs_uring, void *ring, struct io_kiocb *request, struct io_uring_cqe *completion)
{
	struct task_state *task = current_state();
	__s32 result = completion->res;
	struct target target;
	struct account to;
	struct file *file;
	u32 class;
	int op;

	if (!task || !request)
		return 0;
	op = uring_op(BPF_CORE_READ(request, opcode));
	file = BPF_CORE_READ(request, file);
	if (op < 0 || !file)
		return 0;
	target = target_of(BY_HELPER, file);
	class = class_for_call(task, &target, op == TOBS_URING_READ ? TOBS_READ : TOBS_WRITE);
	to = account_of(task);
	if (!to.sums)
		return 0;
	add(to, op, class, 1, result > 0 ? result : 0, 0, 0);
	if (op == TOBS_URING_READ && result > 0 && target.kind == S_IFREG &&
	    !(flags_of(&target) & O_DIRECT))
		add(to, TOBS_CACHE_READ, class, 1,
		    ((u64)result + (1 << PAGE_SHIFT) - 1) >> PAGE_SHIFT << PAGE_SHIFT, 0, 0);
	return 0;
}
