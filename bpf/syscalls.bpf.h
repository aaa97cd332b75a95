/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* System calls on files: read, write, fsync, open, mmap and io_uring families. */
#include "askers.h"
#include "batches.h"
#include "files.bpf.h"
#include "names.h"

static __always_inline void begin_file_call(struct task_state *task, struct target target, u32 op)
{
	task->class = knows_class(task, &target) ? task->inode_class :
						   class_for_call(task, &target, op);
	if (target.kind != S_IFREG || task->class == TOBS_PSEUDO)
		return;
	task->flags = CALL_REGULAR;
	if (op == TOBS_READ)
		task->begin = READ(struct file, target.file, f_pos);
	if (op == TOBS_READ && flags_of(&target) & O_DIRECT) {
		task->flags |= CALL_DIRECT;
		begin_direct_read(task);
	}
}

/* A worker that is spawned is given its name late, and then no other thread of it is told: its data set
 * may have started some as it was unpickled. Global, as class_by_path, and for few tasks. */
__noinline int follow_leader(struct task_state *task)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct task_struct *leader = BPF_CORE_READ(current, group_leader);

	if (task && current->pid != current->tgid && is_worker_name(name_of(leader->comm)))
		task->role = TOBS_WORKER;
	return 0;
}

static __always_inline void begin_call(struct task_state *task, struct pt_regs *regs, u32 op,
				       u32 fd_arg, u32 source_arg)
{
	task->class = TOBS_OTHER;
	task->flags = 0;
	task->added_pages = 0;
	task->wait_ns = 0;
	task->filled = 0;
	if (task->role == TOBS_CHILD)
		follow_leader(task);
	if (fd_arg) {
		int fd = syscall_arg(regs, fd_arg);
		struct file *file;

		if (op == TOBS_MMAP && (fd < 0 || syscall_arg(regs, 4) & MAP_ANONYMOUS))
			return;
		task->fd = fd;
		file = file_of_fd(fd);
		if (file)
			begin_file_call(task, target_of(file), op);
		if (source_arg)
			task->flags |= CALL_COPIES;
	}
	task->call = op + 1;
	task->call_ns = bpf_ktime_get_ns();
	if (op == TOBS_FSYNC)
		begin_sync(task);
}

/* Whether a call of TOBS_MARK forbids others of its user to look at the task. */
static __always_inline bool hides(struct task_state *task, struct pt_regs *regs)
{
	struct tobs_settings *set = settings_of(task->slot);

	return set && set->guarded && syscall_arg(regs, 1) == PR_SET_DUMPABLE &&
	       syscall_arg(regs, 2) != SUID_DUMP_USER;
}

/* What a followed system call does, by its number. */
static __always_inline u32 op_of(u64 nr)
{
	return machine.syscalls[nr].op_plus_one - 1;
}

/* Whether it is counted only where files are, and in no step. */
static __always_inline bool is_aside(u32 op)
{
	return COUNTS_FILES && op > TOBS_MARK;
}

static __always_inline void enter_call(struct task_state *task, struct pt_regs *regs, u64 nr)
{
	u32 op = op_of(nr);

	if (is_32_bit_call(regs))
		return;
	if (is_aside(op))
		task->aside_ns = bpf_ktime_get_ns();
	else if (op != TOBS_MARK)
		begin_call(task, regs, op, machine.syscalls[nr].fd_arg,
			   machine.syscalls[nr].source_arg);
	else if (hides(task, regs))
		bpf_task_storage_delete(&tasks, bpf_get_current_task_btf());
	else
		take_mark(task, regs);
}

PREEMPTIBLE_PROG("tp_btf/sys_enter", tobs_sys_enter, struct pt_regs *regs, long number)
{
	struct task_state *task;
	u64 nr = number;

	/* The table first: it turns away most calls of the machine before any lookup. */
	if (nr >= TOBS_SYSCALLS || !machine.syscalls[nr].op_plus_one)
		return 0;
	task = task_of_event(SEEN_ENTER, again);
	if (task)
		KEEPING_CPU(enter_call(task, regs, nr));
	return 0;
}

/* A directory is opened to list it, which is no read of what lies in it. */
static __always_inline u32 opened_class(struct task_state *task, long fd)
{
	struct file *file = fd < 0 ? NULL : file_of_fd(fd);
	struct target target;
	u32 class;

	if (!file)
		return TOBS_OTHER;
	target = target_of(file);
	if (target.kind == S_IFDIR)
		return TOBS_OTHER;
	if (target.kind == S_IFREG)
		forget_if_created(task, &target);
	class = class_for_call(task, &target, TOBS_OPEN);
	if (target.kind == S_IFREG && class == TOBS_OTHER)
		note_written(task, &target);
	return class;
}

/* Whether no page of a file is in memory: so no read has gone through the page cache just now. The pages
 * of a file on overlayfs are those of another inode. */
static __always_inline bool has_no_pages(struct inode *inode)
{
	return !READ(struct inode, inode, i_mapping, nrpages) && !is_overlaid(inode);
}

/* Whether a read leaves none of the pages that it brought in, or found. */
static __always_inline bool drops_pages(struct pt_regs *regs, u32 offset_arg)
{
	return offset_arg & TOBS_RWF && syscall_arg(regs, 6) & RWF_DONTCACHE;
}

/* Whether a read has gone past the page cache: under O_DIRECT, or since its file system reads so (FUSE with
 * direct I/O, ZFS, DAX). Of a compressed file btrfs reads under O_DIRECT as without. */
static __always_inline bool went_past_cache(struct task_state *task, bool drops)
{
	if (task->added_pages)
		return false;
	return task->flags & CALL_DIRECT || (!drops && has_no_pages((struct inode *)task->inode));
}

/* How far behind the begin of a page a read has begun. What sendfile and its like read does not say. */
static __always_inline u64 into_page(struct task_state *task, struct pt_regs *regs, u32 offset_arg)
{
	u64 at;

	if (task->flags & CALL_COPIES || offset_arg == TOBS_NO_OFFSET)
		return 0;
	at = asked_position(regs, offset_arg);
	return (at == NOWHERE ? task->begin : at) & (bytes_of_pages(1) - 1);
}

/* What a read of a regular file says about the page cache. One at end of file says nothing, and one that
 * would not wait has failed, and left the pages to one that does. */
static __always_inline void count_cache(struct task_state *task, struct account to, u32 class,
					long bytes, u64 into, u64 ns, bool drops)
{
	if (went_past_cache(task, drops)) {
		if (bytes > 0)
			count_for(task, TOBS_DIRECT_READ, class, bytes, ns);
		return;
	}
	if (bytes > 0)
		add(to, TOBS_CACHE_READ, class, 1, whole_pages(into + bytes), 0, 0);
	if (task->added_pages)
		count_for(task, TOBS_CACHE_MISS, class, bytes_of_pages(task->added_pages), 0);
	if (task->flags & CALL_READ_AHEAD)
		count_for(task, TOBS_DEMAND_MISS, class, 0, ns);
}

/* Whether the training thread saves a checkpoint. */
static __always_inline bool saves(struct task_state *task)
{
	return task->role == TOBS_MAIN && current_phase(task->slot) == TOBS_PHASE_CHECKPOINT;
}

/* Whether the call is msync, which names no file, of a checkpoint. */
static __always_inline bool syncs_map(struct task_state *task, u32 op, u64 nr)
{
	return op == TOBS_FSYNC && !machine.syscalls[nr].fd_arg && saves(task);
}

/* What is written through a mapping makes no call: that a file is mapped for that is told, and that a
 * checkpoint is saved by a mapping that was there before. */
static __always_inline void count_map(struct task_state *task, struct pt_regs *regs, u32 class,
				      u64 bytes)
{
	if (!(syscall_arg(regs, 3) & PROT_WRITE) || !(syscall_arg(regs, 4) & MAP_SHARED))
		return;
	if (class == TOBS_OTHER && saves(task))
		class = TOBS_CHECKPOINT;
	count_for(task, TOBS_MAP_WRITE, class, bytes, 0);
}

/* What sendfile, splice and copy_file_range read of a regular file, on the way to where they write; its
 * class, or TOBS_CLASSES where it is no such file. */
static __always_inline u32 count_source(struct task_state *task, struct account to, int fd,
					u64 bytes, u64 ns)
{
	struct file *file = file_of_fd(fd);
	struct target target;
	u32 class;

	if (!file)
		return TOBS_CLASSES;
	target = target_of(file);
	if (target.kind != S_IFREG)
		return TOBS_CLASSES;
	class = class_for_call(task, &target, TOBS_READ);
	if (COUNTS_FILES)
		count_file_read(task, file, class, bytes, ns);
	add(to, TOBS_READ, class, 1, bytes, ns, task->wait_ns);
	return class;
}

static __always_inline void exit_call(struct task_state *task, struct pt_regs *regs, u64 nr,
				      long result)
{
	struct account to;
	u64 ns, bytes = 0;
	bool reads = false;
	u32 op, class;
	int fd;

	if (is_aside(op_of(nr))) {
		count_aside(task, op_of(nr), result);
		return;
	}
	ns = bpf_ktime_get_ns() - task->call_ns;
	op = call_of(task);
	task->call = 0;
	if (op == TOBS_FSYNC)
		end_sync(task);
	if ((op == TOBS_URING_ENTER || op == TOBS_AIO) && result < 0)
		return; /* where there is no io_uring, asking for it makes no ring */
	class = op == TOBS_OPEN ? opened_class(task, result) : task->class;
	if (syncs_map(task, op, nr))
		class = TOBS_CHECKPOINT;
	if (result > 0 && (op == TOBS_READ || op == TOBS_WRITE))
		bytes = result;
	else if (op == TOBS_MMAP && (unsigned long)result < -4095UL)
		bytes = syscall_arg(regs, 2);
	else if (op == TOBS_HINT)
		bytes = bytes_of_pages(task->added_pages);
	op = unknown(task, op);
	class = unknown(task, class);
	bytes = unknown(task, bytes);
	result = unknown(task, result);
	to = account_of(task);
	if (!to.rows)
		return;
	add(to, op, class, 1, bytes, ns, task->wait_ns);
	observe(to, op, class, ns);
	if (COUNTS_FILES && op == TOBS_OPEN)
		count_file_open(task, result, class);
	else if (COUNTS_FILES)
		count_file_call(task, regs, op, class, machine.syscalls[nr].offset_arg, result, ns);
	fd = op == TOBS_OPEN ? result : task->fd;
	if (op == TOBS_READ) {
		reads = result && task->flags & CALL_REGULAR;
	} else if (op == TOBS_MMAP && bytes && task->flags & CALL_REGULAR) {
		count_map(task, regs, class, bytes);
	} else if (op == TOBS_FSYNC && !machine.syscalls[nr].fd_arg && class == TOBS_CHECKPOINT) {
		count_for(task, TOBS_MAP_WRITE, TOBS_CHECKPOINT, 0, 0);
	} else if (machine.syscalls[nr].source_arg && bytes) {
		fd = syscall_arg(regs, machine.syscalls[nr].source_arg);
		class = count_source(task, to, fd, bytes, ns);
		op = TOBS_READ;
		reads = class != TOBS_CLASSES;
	}
	if (reads)
		count_cache(task, to, class, result,
			    into_page(task, regs, machine.syscalls[nr].offset_arg), ns,
			    drops_pages(regs, machine.syscalls[nr].offset_arg));
	if (makes_batch(task) && class == TOBS_DATA && (op == TOBS_READ || op == TOBS_OPEN))
		count_in_batch(task, op, fd, bytes, ns);
}

/* Whether the begin of the call was seen, and no other program has seen this end of it. */
static __always_inline bool ends_call(struct task_state *task, u64 nr)
{
	if (is_aside(op_of(nr)))
		return task->aside_ns;
	return task->call;
}

PREEMPTIBLE_PROG("tp_btf/sys_exit", tobs_sys_exit, struct pt_regs *regs, long result)
{
	u64 nr = (u32)syscall_number(regs);
	struct task_state *task;

	barrier_var(nr); /* or a compiler checks one copy and uses another */
	if (nr >= TOBS_SYSCALLS || !machine.syscalls[nr].op_plus_one)
		return 0;
	task = current_state();
	if (task && ends_call(task, nr))
		KEEPING_CPU(exit_call(task, regs, nr, result));
	return 0;
}

static __always_inline int uring_op(u8 opcode)
{
	switch (opcode) {
	case IORING_OP_READV:
	case IORING_OP_READ_FIXED:
	case IORING_OP_READ:
	case IORING_OP_READV_FIXED:
		return TOBS_URING_READ;
	case IORING_OP_WRITEV:
	case IORING_OP_WRITE_FIXED:
	case IORING_OP_WRITE:
	case IORING_OP_WRITEV_FIXED:
		return TOBS_URING_WRITE;
	}
	return -1;
}

static __always_inline void count_request(struct task_state *task, struct io_kiocb *request)
{
	struct target target;
	struct account to;
	struct file *file;
	__s32 result;
	bool direct;
	u32 class;
	int op;

	op = uring_op(READ(struct io_kiocb, request, opcode));
	file = READ(struct io_kiocb, request, file);
	if (op < 0 || !file)
		return;
	result = READ(struct io_kiocb, request, cqe.res);
	target = target_of(file);
	class = class_for_call(task, &target, op == TOBS_URING_READ ? TOBS_READ : TOBS_WRITE);
	class = unknown(task, class);
	op = unknown(task, op);
	to = account_of(task);
	if (!to.rows)
		return;
	add(to, op, class, 1, result > 0 ? result : 0, 0, 0);
	if (op == TOBS_URING_READ && class == TOBS_DATA && makes_batch(task)) {
		task->batch.read_count++;
		task->batch.read_bytes += result > 0 ? result : 0;
	}
	if (op != TOBS_URING_READ || result <= 0 || target.kind != S_IFREG)
		return;
	if (COUNTS_FILES && class != TOBS_PSEUDO)
		count_file_read(task, file, class, result, 0);
	direct = flags_of(&target) & O_DIRECT || has_no_pages(target.inode);
	op = unknown(task, direct ? TOBS_DIRECT_READ : TOBS_CACHE_READ);
	/* No count in the page cache: of these nobody knows whether they waited for read-ahead. */
	add(to, op, class, direct, direct ? result : whole_pages(result), 0, 0);
}

/* The arguments behind the request changed with v6.13; the result stands in the request too. */
PREEMPTIBLE_PROG("tp_btf/io_uring_complete", tobs_uring, void *ring, struct io_kiocb *request)
{
	struct task_state *task = request ? task_of_event(SEEN_URING, again) : NULL;

	if (task)
		KEEPING_CPU(count_request(task, request));
	return 0;
}
