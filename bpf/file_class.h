/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What kind of file a call works on: by its inode, and by who calls for what. */
#ifndef TRAINOBS_FILE_CLASS_H
#define TRAINOBS_FILE_CLASS_H

#include "inode_class.h"

/* Local sockets carry worker results between processes of one machine: not the network. */
static __always_inline u32 socket_class(u16 family)
{
	return family == AF_INET || family == AF_INET6 ? TOBS_SOCKET : TOBS_PIPE;
}

/* A file that a call works on. */
struct target {
	struct file *file;
	struct inode *inode;
	u32 kind; /* the S_IFMT bits of its mode */
};

static __always_inline struct target target_of(struct file *file)
{
	struct inode *inode = READ(struct file, file, f_inode);

	return (struct target){ file, inode, READ(struct inode, inode, i_mode) & S_IFMT };
}

static __always_inline u32 mode_of(struct target *target)
{
	return READ(struct file, target->file, f_mode);
}

static __always_inline u32 flags_of(struct target *target)
{
	return READ(struct file, target->file, f_flags);
}

/* A task mostly calls on the file it called on last, so it remembers one: that saves the lookup among
 * all files of the data set. Not `other`: another task's call may make such a file data or a
 * checkpoint. */
static __always_inline bool remembers(struct task_state *task, struct target *target)
{
	struct inode *inode = target->inode;

	return task->inode == (u64)inode && task->ino == READ(struct inode, inode, i_ino) &&
	       task->generation == READ(struct inode, inode, i_generation) &&
	       task->class_epoch == class_epoch(task->slot) && task->inode_class != TOBS_OTHER;
}

/* Whether that is the class whatever a call on an open file is for. */
static __always_inline bool knows_class(struct task_state *task, struct target *target)
{
	return task->inode_class != TOBS_OTHER && task->inode_class != TOBS_SHM &&
	       target->kind == S_IFREG && remembers(task, target);
}

static __always_inline u32 remembered_class(struct task_state *task, struct target *target)
{
	struct inode *inode = target->inode;
	struct file *file = target->file;

	if (!remembers(task, target)) {
		task->inode = (u64)inode;
		task->ino = READ(struct inode, inode, i_ino);
		task->generation = READ(struct inode, inode, i_generation);
		task->class_epoch = class_epoch(task->slot);
		/* Read by helper, which gives numbers. */
		task->inode_class = regular_class(task->slot, (u64)BPF_CORE_READ(file, f_inode),
						  (u64)BPF_CORE_READ(file, f_path.dentry));
	}
	return task->inode_class;
}

/* Class of anything but a regular file. */
static __always_inline u32 class_by_kind(struct target *target)
{
	struct inode *inode = target->inode;

	switch (target->kind) {
	case S_IFSOCK:
		return socket_class(family_of(target->file));
	case S_IFIFO:
		return TOBS_PIPE;
	case S_IFCHR:
		return TOBS_PSEUDO;
	}
	return class_by_magic(READ(struct inode, inode, i_sb, s_magic));
}

/* A function of its own, so that its types are in the BTF of the object for the tests. */
static __noinline enum tobs_phase phase_of(struct tobs_clock *clock)
{
	return step_word(clock) & 0xff;
}

static __always_inline enum tobs_phase current_phase(u32 slot)
{
	struct tobs_clock *clock = clock_of(slot);

	return clock ? phase_of(clock) : TOBS_PHASE_OTHER;
}

/* Whether a task is making a batch: a worker, or the training thread where it waits for its loader,
 * which without workers makes the batch itself. */
static __always_inline bool loads(struct task_state *task)
{
	return task->role == TOBS_WORKER ||
	       (task->role == TOBS_MAIN && current_phase(task->slot) == TOBS_PHASE_LOADER);
}

/* Whether what a task reads is data, if it is of no other class. */
static __always_inline bool infers_data(struct task_state *task)
{
	struct tobs_settings *set = settings_of(task->slot);

	return set && set->infer_data && loads(task);
}

/* Likewise of what it touches in a mapping: overlayfs maps a file beneath, which no root names. */
static __always_inline bool infers_touched(struct task_state *task)
{
	struct tobs_settings *set = settings_of(task->slot);

	return set && (set->infer_data || set->overlaid) && loads(task);
}

/* Whether a file in shared memory was opened by shm_open: so torch_shm_manager, a child of a worker,
 * sees whether one of torch's segments is there still. */
static __always_inline bool is_segment(struct target *target, u32 class)
{
	return class == TOBS_SHM && flags_of(target) & O_NOFOLLOW;
}

/* Whether this call makes its file data: see tobs_settings::infer_data. Also a staged copy in shared
 * memory: torch's own segments are never read from. What a loader has open for writing is data once
 * it reads it; before, it may be its scratch. */
static __always_inline bool makes_data(struct task_state *task, struct target *target, u32 class,
				       u32 op)
{
	if (class != TOBS_OTHER && class != TOBS_SHM)
		return false;
	if (op == TOBS_OPEN || op == TOBS_MMAP || op == TOBS_HINT) {
		if (mode_of(target) & FMODE_WRITE)
			return false;
		if (op == TOBS_OPEN && is_segment(target, class))
			return false;
	} else if (op != TOBS_READ) {
		return false;
	}
	return infers_data(task);
}

/* What the main thread opens for writing while it saves a checkpoint is one, wherever it lies:
 * Lightning writes to $TMPDIR and moves the file. A log that is open all the time is none. */
static __always_inline bool makes_checkpoint(struct task_state *task, struct target *target,
					     u32 class, u32 op)
{
	return op == TOBS_OPEN && task->role == TOBS_MAIN && class != TOBS_CHECKPOINT &&
	       class != TOBS_PSEUDO && current_phase(task->slot) == TOBS_PHASE_CHECKPOINT &&
	       mode_of(target) & FMODE_WRITE && !(flags_of(target) & O_APPEND);
}

/* Class of the file of a call of `op` by `task`. Global, as class_by_path. */
__noinline u32 class_of_file(struct task_state *task, u64 address, u32 op)
{
	struct file *file = (struct file *)address;
	struct target target;
	u32 class, better;

	if (!task)
		return TOBS_OTHER;
	target = target_of(file);
	if (target.kind != S_IFREG)
		return class_by_kind(&target);
	class = better = remembered_class(task, &target);
	/* It may have been moved since, or have another name. */
	if (op == TOBS_OPEN && class == TOBS_OTHER)
		better = class_by_path(task->slot, (u64)BPF_CORE_READ(file, f_path.dentry),
				       TOBS_OTHER);
	if (makes_data(task, &target, better, op))
		better = TOBS_DATA;
	else if (makes_checkpoint(task, &target, better, op))
		better = TOBS_CHECKPOINT;
	if (better != class) {
		/* Read by helper, which gives numbers. */
		keep_class(task->slot, (u64)BPF_CORE_READ(file, f_inode), better, task->class_epoch,
			   0);
		task->inode_class = better;
	}
	return better;
}

static __always_inline u32 class_for_call(struct task_state *task, struct target *target, u32 op)
{
	return class_of_file(task, unknown(task, (u64)target->file), op);
}

/* Keep that a file of no class was opened for writing: see touched_class. */
static __always_inline void note_written(struct task_state *task, struct target *target)
{
	struct file *file = target->file;

	if (mode_of(target) & FMODE_WRITE)
		keep_class(task->slot, (u64)BPF_CORE_READ(file, f_inode), TOBS_OTHER,
			   task->class_epoch, 1);
}

/* A file that this open has made has no past: where generations do not tell inodes apart
 * (overlayfs), it may have the number of one whose class is known. */
static __always_inline void forget_if_created(struct task_state *task, struct target *target)
{
	struct file *file = target->file;

	if (!(mode_of(target) & FMODE_CREATED))
		return;
	forget_class(task->slot, (u64)BPF_CORE_READ(file, f_inode));
	task->inode = 0;
}

#endif
