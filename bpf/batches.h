/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What it took to make each batch of a loader. Whoever makes one says so by a system call that the
 * kernel refuses (src/trainobs/hooks/marks.py): it needs no map, so it works however the worker was
 * started and whatever it may do.
 */
#ifndef TRAINOBS_BATCHES_H
#define TRAINOBS_BATCHES_H

#include "maps.h"

static __always_inline bool makes_batch(struct task_state *task)
{
	return task->batch.begin_ns;
}

static __always_inline void begin_batch(struct task_state *task, struct pt_regs *regs)
{
	struct tobs_batch fresh = {
		.worker = syscall_arg(regs, 2),
		.number = syscall_arg(regs, 3),
		.loader = syscall_arg(regs, 4),
		.pass = syscall_arg(regs, 5),
		.begin_ns = moment_of(task->slot, bpf_ktime_get_ns()),
	};

	task->batch = fresh;
	/* Workers of other loaders than torch's own do not have its name. */
	if (fresh.worker != TOBS_MAIN_WORKER)
		task->role = TOBS_WORKER;
}

/* An entry whose ordinal is that of its turn is whole. So the ordinal is cleared before the rest is
 * written, and written after it: atomic operations that fetch keep the order on every machine. */
static __always_inline void publish_batch(struct tobs_counts *counts, struct tobs_batch *batch)
{
	u64 turn = __sync_fetch_and_add(&counts->batch_count, 1);
	struct tobs_batch *entry = &counts->batches[turn & (TOBS_BATCHES - 1)];

	__sync_lock_test_and_set(&entry->ordinal, 0);
	batch->ordinal = 0;
	*entry = *batch;
	__sync_lock_test_and_set(&entry->ordinal, turn + 1);
}

/* The call of TOBS_MARK: prctl, of which all but the marks is of no interest. */
static __always_inline void take_mark(struct task_state *task, struct pt_regs *regs)
{
	u64 mark = syscall_arg(regs, 1);
	struct tobs_counts *counts;

	if (mark == TOBS_BATCH_BEGIN) {
		begin_batch(task, regs);
		return;
	}
	if ((mark != TOBS_BATCH_END && mark != TOBS_BATCH_VOID) || !makes_batch(task))
		return;
	task->batch.end_ns = moment_of(task->slot, bpf_ktime_get_ns());
	task->batch.handed_bytes = syscall_arg(regs, 2);
	counts = counts_of(task->slot);
	if (mark == TOBS_BATCH_END && counts)
		publish_batch(counts, &task->batch);
	task->batch.begin_ns = 0;
}

/* Keep the end of the name of the file of a call: of that part of a path that differs most. */
static __always_inline void keep_name(struct tobs_batch *batch, struct file *file)
{
	struct dentry *dentry = READ(struct file, file, f_path.dentry);
	const unsigned char *name = FIELD(dentry, d_name.name);
	u32 length = FIELD(dentry, d_name.len);

	__builtin_memset(batch->slowest_name, 0, TOBS_NAME);
	if (length >= TOBS_NAME)
		name += length - (TOBS_NAME - 1);
	bpf_probe_read_kernel_str(batch->slowest_name, TOBS_NAME, name);
}

/* A read or an open of training data is over, inside a batch. */
static __always_inline void count_in_batch(struct task_state *task, u32 op, long fd, u64 bytes,
					   u64 ns)
{
	struct tobs_batch *batch = &task->batch;
	struct file *file;

	if (op == TOBS_READ) {
		batch->read_count++;
		batch->read_bytes += bytes;
		batch->read_ns += ns;
	}
	if (ns <= batch->slowest_ns || fd < 0)
		return;
	file = file_of_fd(fd);
	if (!file)
		return;
	batch->slowest_ns = ns;
	keep_name(batch, file);
}

/* A period off the CPU is over: asleep, and then ready to run without one. */
static __always_inline void sleep_in_batch(struct task_state *task, u64 slept, u64 ready, u64 wait)
{
	task->batch.runqueue_ns += ready;
	task->batch.device_ns += wait;
	task->batch.sleep_ns += slept - wait;
}

#endif
