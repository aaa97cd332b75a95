/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What kind of file an inode is: decided once, by walking up to a registered directory. */
#ifndef TRAINOBS_INODE_CLASS_H
#define TRAINOBS_INODE_CLASS_H

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

/* Directories (or single files) whose class is known; the nearest ancestor decides. Checkpoints are kept
 * here as well, from where none is forgotten: no path tells of them, nor does write-back know a path. */
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

/* Whether EROFS keeps in an inode what it has not unpacked yet. Nobody sets the mode of that. */
static __always_inline bool holds_packed(struct inode *inode)
{
	return READ(struct inode, inode, i_sb, s_magic) == EROFS_SUPER_MAGIC &&
	       !READ(struct inode, inode, i_ino);
}

/* Whether another inode, which no path from a root leads to, has the pages of a file. */
static __always_inline bool is_overlaid(struct inode *inode)
{
	return READ(struct inode, inode, i_sb, s_magic) == OVERLAYFS_SUPER_MAGIC;
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
	void *classes = bpf_map_lookup_elem(&session_classes, &slot), *roots;

	if (classes && bpf_map_update_elem(classes, &key, &value, BPF_ANY))
		COUNT_LOSS(slot, classes);
	if (class != TOBS_CHECKPOINT)
		return 0;
	roots = bpf_map_lookup_elem(&session_roots, &slot);
	if (roots && bpf_map_update_elem(roots, &key, &class, BPF_ANY))
		COUNT_LOSS(slot, classes);
	return 0;
}

/* Global, as class_by_path. */
__noinline int forget_class(u32 slot, u64 inode)
{
	struct inode_key key = key_of((struct inode *)inode);
	void *classes = bpf_map_lookup_elem(&session_classes, &slot);
	void *roots = bpf_map_lookup_elem(&session_roots, &slot);

	if (classes)
		bpf_map_delete_elem(classes, &key);
	if (roots)
		bpf_map_delete_elem(roots, &key);
	return 0;
}

/* Class decided earlier for an inode, where there is no time for more. Global, as class_by_path. */
__noinline u32 known_class(u32 slot, u64 inode)
{
	struct inode_key key = key_of((struct inode *)inode);
	struct inode_class *known = in_session(&session_classes, slot, &key);
	u32 *kept;

	if (known)
		return known->class;
	kept = in_session(&session_roots, slot, &key);
	return kept ? *kept : TOBS_OTHER;
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

/* Class of a regular file that is not known, or not of this epoch. */
__noinline u32 decided_class(u32 slot, u64 inode_address, u64 name, u32 written)
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

	if (known && known->epoch == class_epoch(slot))
		return known->class;
	return decided_class(slot, inode, name, known ? known->written : 0);
}

#endif
