/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What is read and written of each file, in the objects that count files. For a set of programs with a
 * single session, by epoch of its clock. User space takes out what belongs to epochs that are over, and
 * makes the maps as large as it wants them.
 *
 * A position is compared with the end of the access before by the same open file, whoever made it:
 * that is what read-ahead goes by. Reads and writes are told apart.
 */
#ifndef TRAINOBS_FILES_H
#define TRAINOBS_FILES_H

#include "file_class.h"
#include "unique.h"

/* The last of the reads, or of the writes, by an open file. */
struct stream {
	u64 ino;
	u64 end;    /* NOWHERE: not known */
	u64 begin;  /* of the run of consecutive ones, ... */
	u32 epoch;  /* ... in that epoch */
	u32 is_new; /* there was none yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct tobs_total_key);
	__type(value, struct tobs_total);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct tobs_file_key);
	__type(value, struct tobs_file);
} files SEC(".maps");

/* By the address of an open file, to which the operation is added. LRU: nobody says when it is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct stream);
} streams SEC(".maps");

/* Of zeros, since they are too large for the stack. */
struct tobs_total empty_total;
struct tobs_file empty_file;

static __always_inline struct tobs_total *total_for(struct tobs_total_key *key)
{
	struct tobs_total *total = bpf_map_lookup_elem(&totals, key);

	if (total)
		return total;
	bpf_map_update_elem(&totals, key, &empty_total, BPF_NOEXIST);
	return bpf_map_lookup_elem(&totals, key);
}

static __always_inline void name_file(struct tobs_file *file, u64 open_file)
{
	struct dentry *object = READ(struct file, (void *)open_file, f_path.dentry);
	const unsigned char *name = FIELD(object, d_name.name);
	u32 length = FIELD(object, d_name.len);

	bpf_probe_read_kernel_str(file->parent, TOBS_PARENT, FIELD(object, d_parent, d_name.name));
	if (length >= TOBS_NAME)
		name += length - (TOBS_NAME - 1);
	bpf_probe_read_kernel_str(file->name, TOBS_NAME, name);
}

static __always_inline struct tobs_file *file_for(struct access *access)
{
	struct tobs_file_key *key = &access->key;
	struct tobs_file *file = bpf_map_lookup_elem(&files, key);

	if (file)
		return file;
	if (!bpf_map_update_elem(&files, key, &empty_file, BPF_NOEXIST)) {
		file = bpf_map_lookup_elem(&files, key);
		if (file)
			name_file(file, access->file);
		return file;
	}
	return bpf_map_lookup_elem(&files, key);
}

static __always_inline void add_access(struct tobs_access *to, struct access *access)
{
	if (access->event != EVENT_CALL) {
		bump(access->event == EVENT_OPEN ? &to->open_count : &to->mmap_count, 1);
		return;
	}
	if (access->result < 0) {
		bump(&to->failed_count, 1);
		return;
	}
	if (!access->result) {
		bump(&to->empty_count, 1);
		return;
	}
	bump(&to->count, 1);
	bump(&to->bytes, access->result);
	bump(&to->ns, access->ns);
	switch (access->order) {
	case ORDER_UNKNOWN:
		break;
	case ORDER_FIRST:
		bump(&to->first_count, 1);
		break;
	case ORDER_CONSECUTIVE:
		bump(&to->consecutive_count, 1);
		break;
	case ORDER_FORWARD:
		bump(&to->forward_count, 1);
		break;
	case ORDER_BACKWARD:
		bump(&to->backward_count, 1);
		break;
	}
	if (access->begin != NOWHERE && !(access->begin & (bytes_of_pages(1) - 1)))
		bump(&to->aligned_count, 1);
	bump(&to->unique_least, access->least);
	bump(&to->unique_most, access->most);
	bump(&to->untold_bytes, access->untold);
}

static __always_inline void keep_stream(struct access *access, u64 key, u64 end, bool is_new)
{
	struct stream fresh = {
		.ino = access->key.ino,
		.end = end,
		.begin = access->begin,
		.epoch = access->key.epoch,
		.is_new = is_new,
	};

	bpf_map_update_elem(&streams, &key, &fresh, BPF_ANY);
}

static __always_inline enum order order_of(struct stream *stream, u64 begin)
{
	u64 before = stream->end;

	if (begin == NOWHERE)
		return ORDER_UNKNOWN;
	if (stream->is_new)
		return ORDER_FIRST;
	if (before == NOWHERE)
		return ORDER_UNKNOWN;
	if (begin == before)
		return ORDER_CONSECUTIVE;
	return begin > before ? ORDER_FORWARD : ORDER_BACKWARD;
}

/* How an access lies to the one before, and where the next one is compared with. */
static __always_inline void follow_stream(struct access *access)
{
	u64 key = access->file | (access->key.op & 1), begin = access->begin;
	u64 end = begin == NOWHERE ? NOWHERE : begin + access->result;
	struct stream *stream = bpf_map_lookup_elem(&streams, &key);

	access->run_begin = begin;
	if (!stream || stream->ino != access->key.ino) { /* opened before, or long ago */
		keep_stream(access, key, end, false);
		return;
	}
	access->order = order_of(stream, begin);
	if (access->order == ORDER_CONSECUTIVE && stream->epoch == access->key.epoch)
		access->run_begin = stream->begin;
	stream->begin = access->run_begin;
	stream->epoch = access->key.epoch;
	stream->is_new = 0;
	stream->end = end;
}

/* Of an open file nothing was read or written yet. */
static __always_inline void begin_streams(struct access *access)
{
	if (access->mode & FMODE_READ)
		keep_stream(access, access->file | TOBS_FILE_READ, NOWHERE, true);
	if (access->mode & FMODE_WRITE)
		keep_stream(access, access->file | TOBS_FILE_WRITE, NOWHERE, true);
}

static __always_inline void count_size(struct tobs_total *total, u64 bytes)
{
	u32 bucket = log2_bucket(bytes);

	barrier_var(bucket); /* as in count_latency */
	if (bucket < TOBS_SIZES)
		__sync_fetch_and_add(&total->sizes[bucket], 1);
}

/* An open has made a file, and another one with its key was counted in this epoch: where generations do
 * not tell inodes apart (overlayfs), it has the number of one that is deleted. What is known of that
 * stays, under a key of its own; but the blocks of a file cannot move. Global, as what is deeper down is:
 * up to v6.8 or so the stacks of functions that call each other may have 512 bytes, by 32. */
__noinline int put_aside(struct access *access, u32 op)
{
	struct tobs_file_key key; /* before v5.18 or so the verifier takes none behind an argument */
	struct tobs_file *file;

	if (!access)
		return 0;
	key = access->key;
	key.op = op;
	file = bpf_map_lookup_elem(&files, &key);
	if (!file)
		return 0;
	key.generation = bpf_get_prandom_u32();
	if (file->front & FROZEN || bpf_map_update_elem(&files, &key, file, BPF_NOEXIST)) {
		file->mixed = 1;
		return 0;
	}
	key.generation = access->key.generation;
	bpf_map_delete_elem(&files, &key);
	return 0;
}

static __always_inline void count_access(struct access *access)
{
	struct tobs_total *total;
	struct tobs_file *file;

	if (access->event == EVENT_OPEN && access->mode & FMODE_CREATED) {
		put_aside(access, TOBS_FILE_READ);
		put_aside(access, TOBS_FILE_WRITE);
	}
	file = file_for(access);
	if (file && file->access.count && file->class != access->total.class)
		file->mixed = 1; /* the class before has counted bytes that this one moves again */
	if (access->event == EVENT_OPEN)
		begin_streams(access);
	if (access->event == EVENT_CALL && access->result > 0) {
		follow_stream(access);
		barrier_var(file); /* as in add of maps.h: a compiler keeps whether there is one */
		if (file && !file->mixed)
			tell_unique(access, file);
		else
			access->untold = access->result;
	}
	barrier_var(file);
	if (file) {
		file->class = access->total.class;
		if (access->result > 0 || !file->size) /* the one that blocks were counted by */
			file->size = access->size;
		add_access(&file->access, access);
	}
	total = total_for(&access->total);
	if (!total)
		return;
	add_access(&total->access, access);
	if (access->event == EVENT_CALL && access->result > 0) {
		count_size(total, access->result);
		if (!file)
			bump(&total->unlisted_count, 1);
	}
}

/* Global, as class_by_path of inode_class.h is; so what is more than five numbers comes packed. */
__noinline int count_on_file(u32 what, u64 address, u64 begin, long result, u64 ns)
{
	u32 slot = what >> 24, class = what >> 16 & 0xff, op = what >> 8 & 0xff;
	struct file *file = UNTRUSTED(struct file, (void *)address);
	struct inode *inode = FIELD(file, f_inode);
	struct inode_key key = key_of(inode);
	struct tobs_clock *clock = clock_of(slot);
	u32 epoch = clock ? *(volatile u64 *)&clock->epoch : 0;
	struct access access = {
		.key = { key.ino, key.dev, key.generation, epoch, op },
		.total = { epoch, op, class },
		.file = address,
		.size = FIELD(inode, i_size),
		.begin = begin,
		.ns = ns,
		.result = result,
		.event = what & 0xff,
		.mode = FIELD(file, f_mode),
	};

	count_access(&access);
	return 0;
}

static __always_inline void count_event(struct task_state *task, struct file *file,
					enum event event, enum tobs_file_op op, u32 class,
					u64 begin, long result, u64 ns)
{
	u32 what = task->slot << 24 | class << 16 | op << 8 | event;

	count_on_file(what, unknown(task, (u64)file), begin, result, ns);
}

/* Where a call's arguments say that it begins; NOWHERE: at the file's own position, which preadv2 and
 * pwritev2 may say, too. */
static __always_inline u64 asked_position(struct pt_regs *regs, u32 offset_arg)
{
	return offset_arg ? syscall_arg(regs, offset_arg & (TOBS_RWF - 1)) : NOWHERE;
}

/* Where in its file a call began that has moved some bytes; task_state::fd is the file. */
static __always_inline u64 position_of(struct file *file, struct pt_regs *regs, u32 offset_arg,
				       long result)
{
	u32 flags = 0;
	bool appends;
	u64 at;

	if (offset_arg == TOBS_NO_OFFSET)
		return NOWHERE;
	at = asked_position(regs, offset_arg);
	if (at == NOWHERE) /* it stands where the call has ended */
		return READ(struct file, file, f_pos) - result;
	if (offset_arg & TOBS_RWF)
		flags = syscall_arg(regs, 6);
	appends = flags & RWF_APPEND ||
		  (READ(struct file, file, f_flags) & O_APPEND && !(flags & RWF_NOAPPEND));
	return appends ? NOWHERE : at; /* to the end, wherever it was to go */
}

/* A call on a regular file is over. */
static __always_inline void count_file_call(struct task_state *task, struct pt_regs *regs, u32 op,
					    u32 class, u32 offset_arg, long result, u64 ns)
{
	enum tobs_file_op as = op == TOBS_WRITE ? TOBS_FILE_WRITE : TOBS_FILE_READ;
	struct file *file;

	if (!(task->flags & CALL_REGULAR))
		return;
	file = file_of_fd(task->fd);
	if (!file)
		return;
	if (op == TOBS_MMAP) {
		if ((unsigned long)result < -4095UL)
			count_event(task, file, EVENT_MMAP, as, class, NOWHERE, 0, 0);
	} else if (op == TOBS_READ || op == TOBS_WRITE) {
		u64 begin = result > 0 ? position_of(file, regs, offset_arg, result) : NOWHERE;

		count_event(task, file, EVENT_CALL, as, class, begin, result, ns);
	}
}

/* An open is over. Where it may read and write, it counts as one for reading. */
static __always_inline void count_file_open(struct task_state *task, long fd, u32 class)
{
	struct file *file = fd < 0 ? NULL : file_of_fd(fd);
	struct target target;
	enum tobs_file_op op;

	if (!file || class == TOBS_PSEUDO)
		return;
	target = target_of(file);
	if (target.kind != S_IFREG)
		return;
	if (mode_of(&target) & FMODE_PATH)
		return; /* for its name alone */
	op = mode_of(&target) & FMODE_READ ? TOBS_FILE_READ : TOBS_FILE_WRITE;
	count_event(task, file, EVENT_OPEN, op, class, NOWHERE, 0, 0);
}

/* Read by a way that does not tell where. */
static __always_inline void count_file_read(struct task_state *task, struct file *file, u32 class,
					    long bytes, u64 ns)
{
	count_event(task, file, EVENT_CALL, TOBS_FILE_READ, class, NOWHERE, bytes, ns);
}

/* A call of TOBS_STAT or TOBS_LIST is over: of which file it was is not told. */
static __always_inline void count_aside(struct task_state *task, u32 op, long result)
{
	struct tobs_clock *clock = clock_of(task->slot);
	struct tobs_total_key key = {
		.epoch = clock ? *(volatile u64 *)&clock->epoch : 0,
		.op = op == TOBS_STAT ? TOBS_FILE_STAT : TOBS_FILE_LIST,
	};
	struct tobs_total *total;

	total = total_for(&key);
	if (total) {
		bump(result < 0 ? &total->access.failed_count : &total->access.count, 1);
		bump(&total->access.ns, bpf_ktime_get_ns() - task->aside_ns);
	}
	task->aside_ns = 0;
}

#endif
