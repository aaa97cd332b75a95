/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What kind of file a file is: decided once an inode, by walking up to a registered directory. */
#ifndef TRAINOBS_FILE_CLASS_H
#define TRAINOBS_FILE_CLASS_H

#include "maps.h"

/* The generation tells a new file from a deleted one whose inode number it took over. */
struct inode_key {
	u64 ino;
	u32 dev;
	u32 generation;
};

struct inode_class {
	u32 epoch; /* tobs_settings::class_epoch when it was decided */
	u16 class;
	u16 written; /* opened for writing while it was of no other class */
};

/* LRU: a data set may have more files than anyone wants to remember. Here one entry of it stands for
 * as many as the map of a session is made with. */
struct classes_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct inode_key));
	__uint(value_size, sizeof(struct inode_class));
};

/* Directories (or single files) whose class is known; the nearest ancestor decides. */
struct roots_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct inode_key));
	__uint(value_size, sizeof(u32));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TOBS_SLOTS);
	__type(key, u32);
	__array(values, struct classes_map);
} session_classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TOBS_SLOTS);
	__type(key, u32);
	__array(values, struct roots_map);
} session_roots SEC(".maps");

#define MAX_DEPTH 32 /* directories between a file and its root */

static __always_inline struct inode_key key_of(struct inode *inode)
{
	struct inode *object = UNTRUSTED(struct inode, inode);
	struct inode_key key = {
		.ino = FIELD(object, i_ino),
		.dev = FIELD(object, i_sb, s_dev),
		.generation = FIELD(object, i_generation),
	};

	return key;
}

static __always_inline bool is_regular(struct inode *inode)
{
	return (READ(struct inode, inode, i_mode) & S_IFMT) == S_IFREG;
}

static __always_inline u32 class_epoch(u32 slot)
{
	struct tobs_settings *set = settings_of(slot);

	return set ? set->class_epoch : 0;
}

/* Keep the class of an inode. `epoch`: read before the class was decided, or a class that knows nothing
 * of a root that is added meanwhile would count as decided after it. Global, as class_by_path. */
__noinline int keep_class(u32 slot, u64 inode, u32 class, u32 epoch, u32 written)
{
	struct inode_key key = key_of((struct inode *)inode);
	struct inode_class value = { .epoch = epoch, .class = class, .written = written };
	void *classes = bpf_map_lookup_elem(&session_classes, &slot);

	if (classes && bpf_map_update_elem(classes, &key, &value, BPF_ANY))
		COUNT_LOSS(slot, classes);
	return 0;
}

/* Class decided earlier for an inode, where there is no time for more. */
static __always_inline u32 known_class(u32 slot, struct inode *inode)
{
	struct inode_key key = key_of(inode);
	struct inode_class *known = in_session(&session_classes, slot, &key);

	return known ? known->class : TOBS_OTHER;
}

/* Python code lies in many places that nobody registers: the project, a notebook's folder. And so do
 * shared objects, also with a version behind their name: libarrow.so.2300, libz.so.1.3.1 */
static __always_inline bool is_code(struct dentry *dentry)
{
	struct dentry *object = UNTRUSTED(struct dentry, dentry);
	u32 length = FIELD(object, d_name.len);
	const unsigned char *name = FIELD(object, d_name.name);
	u64 end[2] = {}; /* the last 16 characters, or what lies before the name */

	if (length < 4)
		return false;
	bpf_probe_read_kernel(end, sizeof(end), name + length - sizeof(end));
	if (end[1] >> 40 == 0x79702e /* ".py" */ || end[1] >> 32 == 0x6379702e /* ".pyc" */ ||
	    end[1] >> 40 == 0x6f732e /* ".so" */)
		return true;
	if ((end[1] >> 56) - '0' > 9)
		return false;
	for (u32 i = 0; i < 12; i++) { /* characters of the version, which begins with a digit */
		u8 first = end[1] >> 56;

		end[1] = end[1] << 8 | end[0] >> 56;
		end[0] <<= 8;
		if ((u32)(end[1] >> 32) == 0x2e6f732e /* ".so." */)
			return (u8)(first - '0') <= 9;
	}
	return false;
}

/* A way up from a file to the nearest directory whose class is known. */
struct climb {
	struct dentry *dentry; /* the next one to look at */
	u32 slot;
	u32 class; /* of the one that was found; otherwise as it was */
};

static long climb_on(u32 index, struct climb *climb)
{
	struct dentry *dentry = climb->dentry, *parent = BPF_CORE_READ(dentry, d_parent);
	struct inode_key key = key_of(READ(struct dentry, dentry, d_inode));
	u32 *class = in_session(&session_roots, climb->slot, &key);

	if (class)
		climb->class = *class;
	climb->dentry = parent;
	return class || !parent || parent == dentry;
}

/* Global, so that the verifier walks through it once and not once for each way that leads here. Such a
 * function takes numbers, or structures with nothing but numbers in them. */
__noinline u32 class_by_path(u32 slot, u64 name, u32 otherwise)
{
	struct climb climb = { (struct dentry *)name, slot, otherwise };

	if (HAS_HELPER(loop)) {
		bpf_loop(MAX_DEPTH, climb_on, &climb, 0);
		return climb.class;
	}
	/* 64 bits: v5.15 does not know what a shorter counter held that it kept on the stack. */
	for (u64 i = 0; i < MAX_DEPTH; i++)
		if (climb_on(i, &climb))
			break;
	return climb.class;
}

/* Local sockets carry worker results between processes of one machine: not the network. */
static __always_inline u32 socket_class(u16 family)
{
	return family == AF_INET || family == AF_INET6 ? TOBS_SOCKET : TOBS_PIPE;
}

/* Class by the kind of file system; files of /proc and /sys call themselves regular. */
static __always_inline u32 class_by_magic(u64 magic)
{
	switch (magic) {
	case PROC_SUPER_MAGIC:
	case SYSFS_MAGIC:
	case CGROUP_SUPER_MAGIC:
	case CGROUP2_SUPER_MAGIC:
	case ANON_INODE_FS_MAGIC:
		return TOBS_PSEUDO;
	case TMPFS_MAGIC:
		return TOBS_SHM;
	}
	return TOBS_OTHER;
}

/* Class of a regular file that is not known, or not of this epoch; `before`: what it was. */
__noinline u32 decided_class(u32 slot, u64 inode_address, u64 name, u32 before, u32 written)
{
	struct inode *inode = (struct inode *)inode_address;
	struct dentry *dentry = (struct dentry *)name;
	u32 class, epoch = class_epoch(slot);

	if (!dentry)
		dentry = dentry_of(inode);
	class = class_by_magic(READ(struct inode, inode, i_sb, s_magic));
	if (class == TOBS_OTHER && is_code(dentry))
		class = TOBS_LIBRARY;
	class = class_by_path(slot, (u64)dentry, class);
	/* A checkpoint is known by who wrote it when, which no path tells: it stays one. */
	if (before == TOBS_CHECKPOINT)
		class = TOBS_CHECKPOINT;
	keep_class(slot, inode_address, class, epoch, written);
	return class;
}

/*
 * Class of a regular file by a name of it; NULL stands for any. It is kept with the inode, so that
 * the block layer and write-back, which see only inodes, find it.
 */
__noinline u32 regular_class(u32 slot, u64 inode, u64 name)
{
	struct inode_key key = key_of((struct inode *)inode);
	struct inode_class *known = in_session(&session_classes, slot, &key);
	u32 before = TOBS_OTHER, written = 0;

	if (known) {
		if (known->epoch == class_epoch(slot))
			return known->class;
		before = known->class;
		written = known->written;
	}
	return decided_class(slot, inode, name, before, written);
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

/* Whether this call makes its file data: see tobs_settings::infer_data. Also a staged copy in shared
 * memory: torch's own segments are never read from, and always open for writing. What a loader has
 * open for writing is data once it reads it; before, it may be its scratch. */
static __always_inline bool makes_data(struct task_state *task, struct target *target, u32 class,
				       u32 op)
{
	if (class != TOBS_OTHER && class != TOBS_SHM)
		return false;
	if (op == TOBS_OPEN || op == TOBS_MMAP || op == TOBS_HINT) {
		if (mode_of(target) & FMODE_WRITE)
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
	u32 slot = task->slot;
	struct inode_key key;
	void *classes;

	if (!(mode_of(target) & FMODE_CREATED))
		return;
	key = key_of(target->inode);
	classes = bpf_map_lookup_elem(&session_classes, &slot);
	if (classes)
		bpf_map_delete_elem(classes, &key);
	task->inode = 0;
}

#endif
