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
	u32 epoch; /* tobs_control::class_epoch when it was decided */
	u32 class;
};

/* LRU: a data set may have more files than anyone wants to remember. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct inode_key);
	__type(value, struct inode_class);
} inode_classes SEC(".maps");

/* Directories (or single files) whose class is known; the nearest ancestor decides. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct inode_key);
	__type(value, u32);
} roots SEC(".maps");

#define MAX_DEPTH 32 /* directories between a file and its root */

static __always_inline struct inode_key key_of(struct inode *inode)
{
	struct inode_key key = {
		.ino = BPF_CORE_READ(inode, i_ino),
		.dev = BPF_CORE_READ(inode, i_sb, s_dev),
		.generation = BPF_CORE_READ(inode, i_generation),
	};

	return key;
}

static __always_inline bool is_regular(struct inode *inode)
{
	return (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFREG;
}

static __always_inline u32 class_epoch(void)
{
	struct tobs_control *set = settings();

	return set ? set->class_epoch : 0;
}

static __always_inline void keep_class(struct inode_key *key, u32 class)
{
	struct inode_class value = { .epoch = class_epoch(), .class = class };

	if (bpf_map_update_elem(&inode_classes, key, &value, BPF_ANY))
		COUNT_LOSS(classes);
}

/* Class decided earlier for an inode, where only the inode is at hand. */
static __always_inline u32 known_class(struct inode *inode)
{
	struct inode_key key = key_of(inode);
	struct inode_class *known = bpf_map_lookup_elem(&inode_classes, &key);

	return known ? known->class : TOBS_OTHER;
}

/* Python code lies in many places that nobody registers: the project, a notebook's folder. */
static __always_inline bool is_code(struct dentry *dentry)
{
	u32 length = BPF_CORE_READ(dentry, d_name.len);
	const unsigned char *name = BPF_CORE_READ(dentry, d_name.name);
	char end[4] = {};

	if (length < 4)
		return false;
	bpf_probe_read_kernel(end, sizeof(end), name + length - 4);
	if (end[1] == '.' && end[2] == 'p' && end[3] == 'y')
		return true;
	if (end[1] == '.' && end[2] == 's' && end[3] == 'o')
		return true;
	return end[0] == '.' && end[1] == 'p' && end[2] == 'y' && end[3] == 'c';
}

static __always_inline u32 class_by_path(struct dentry *dentry, u32 otherwise)
{
	for (int i = 0; i < MAX_DEPTH; i++) {
		struct inode *inode = BPF_CORE_READ(dentry, d_inode);
		struct dentry *parent = BPF_CORE_READ(dentry, d_parent);
		struct inode_key key = key_of(inode);
		u32 *class = bpf_map_lookup_elem(&roots, &key);

		if (class)
			return *class;
		if (!parent || parent == dentry)
			break;
		dentry = parent;
	}
	return otherwise;
}

static __always_inline u32 class_by_kind(u16 kind, u64 magic)
{
	if (kind == S_IFSOCK)
		return TOBS_SOCKET;
	if (kind == S_IFIFO)
		return TOBS_PIPE;
	if (kind == S_IFCHR || magic == PROC_SUPER_MAGIC || magic == SYSFS_MAGIC ||
	    magic == ANON_INODE_FS_MAGIC)
		return TOBS_PSEUDO;
	return TOBS_OTHER;
}

/*
 * Class of an open file. The class of a regular file is kept with its inode, so that the block
 * layer and write-back, which see only inodes, find it.
 */
static __noinline u32 regular_class(struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	struct inode_key key = key_of(inode);
	struct inode_class *known = bpf_map_lookup_elem(&inode_classes, &key);
	struct dentry *dentry;
	u32 class;

	if (known && known->epoch == class_epoch())
		return known->class;
	dentry = BPF_CORE_READ(file, f_path.dentry);
	class = BPF_CORE_READ(inode, i_sb, s_magic) == TMPFS_MAGIC ? TOBS_SHM : TOBS_OTHER;
	if (class == TOBS_OTHER && is_code(dentry))
		class = TOBS_LIBRARY;
	class = class_by_path(dentry, class);
	/* A checkpoint is known by who wrote it when, which no path tells: it stays one. */
	if (known && known->class == TOBS_CHECKPOINT)
		class = TOBS_CHECKPOINT;
	keep_class(&key, class);
	return class;
}

static __always_inline u32 class_of(struct file *file, u16 mode)
{
	if ((mode & S_IFMT) == S_IFREG)
		return regular_class(file);
	return class_by_kind(mode & S_IFMT, BPF_CORE_READ(file, f_inode, i_sb, s_magic));
}

/* Whether this call makes its file data: see tobs_control::infer_data. */
static __always_inline bool makes_data(struct task_state *task, struct file *file, u32 class, u32 op)
{
	struct tobs_control *set = settings();

	return class == TOBS_OTHER && task->role == TOBS_WORKER && set && set->infer_data &&
	       (op == TOBS_READ || op == TOBS_OPEN || op == TOBS_MMAP) &&
	       !(BPF_CORE_READ(file, f_mode) & FMODE_WRITE);
}

/* What the main thread writes while it saves a checkpoint is one, wherever it lies: Lightning
 * writes to $TMPDIR and moves the file. */
static __always_inline bool makes_checkpoint(struct task_state *task, u32 class, u32 op)
{
	return class != TOBS_CHECKPOINT && op == TOBS_WRITE && task->role == TOBS_MAIN &&
	       (step_word() & 0xff) == TOBS_PHASE_CHECKPOINT;
}

/* Class of the file of a call of `op` by `task`. */
static __always_inline u32 class_for_call(struct task_state *task, struct file *file, u16 mode, u32 op)
{
	u32 class = class_of(file, mode), better = class;

	if ((mode & S_IFMT) != S_IFREG)
		return class;
	if (makes_data(task, file, class, op))
		better = TOBS_DATA;
	else if (makes_checkpoint(task, class, op))
		better = TOBS_CHECKPOINT;
	if (better != class) {
		struct inode_key key = key_of(BPF_CORE_READ(file, f_inode));

		keep_class(&key, better);
	}
	return better;
}

#endif
