/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The maps, and the two ways to add to them. */
#ifndef TRAINOBS_MAPS_H
#define TRAINOBS_MAPS_H

#include "kernel.h"
#include "trainobs.h"

/* How the system calls of this machine map to operations; written between open and load. */
const volatile struct tobs_syscall syscalls[TOBS_SYSCALLS];

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tobs_clock);
} step_clock SEC(".maps");

/* One entry a cell, not a row: the verifier then needs no bounds for the index inside a row. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TOBS_RING *TOBS_OPS *TOBS_CLASSES *TOBS_ROLES);
	__type(key, u32);
	__type(value, struct tobs_cell);
} step_rows SEC(".maps");

/* Latency of the reading block requests of each step of the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TOBS_RING);
	__type(key, u32);
	__type(value, struct tobs_buckets);
} step_latency SEC(".maps");

/* Latency since load, by op, class and role. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TOBS_OPS *TOBS_CLASSES *TOBS_ROLES);
	__type(key, u32);
	__type(value, struct tobs_buckets);
} histograms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tobs_losses);
} losses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tobs_control);
} control SEC(".maps");

/* What is known of a task that we follow; gone with the task. */
struct task_state {
	u64 call_ns; /* when the system call in flight began */
	u64 wait_ns; /* asleep for a device inside it */
	u64 off_ns;  /* when it left the CPU; 0: it runs */
	u64 wake_ns; /* when it became ready to run */
	u64 reclaim_ns; /* when it began to free memory; 0: it does not */
	u64 inode;   /* the regular file called on last, by address, number and generation: ... */
	u64 ino;
	u32 generation;
	u32 class_epoch; /* ... what its class is worth, and ... */
	u32 added_pages;
	int fd;		/* of the call in flight */
	u8 inode_class; /* ... its class */
	u8 call;	/* op of the system call in flight, plus one; 0: none */
	u8 class;
	u8 role;
	u8 flags;
	struct tobs_batch batch; /* the one that it makes; begin_ns 0: none */
};

#define CALL_DIRECT 1	  /* the file is open with O_DIRECT */
#define CALL_REGULAR 2	  /* the file is a regular one */
#define CALL_READ_AHEAD 4 /* the call started read-ahead and waits for it */
#define OFF_IOWAIT 8	  /* the task sleeps for a block device */
#define OFF_AWAIT 16	  /* the task sleeps for another thread */

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

static __always_inline struct task_state *state_of(struct task_struct *task)
{
	return bpf_task_storage_get(&tasks, task, NULL, 0);
}

static __always_inline struct task_state *current_state(void)
{
	return state_of(bpf_get_current_task_btf());
}

static __always_inline u64 step_word(void)
{
	struct tobs_clock *clock;
	u32 zero = 0;

	clock = bpf_map_lookup_elem(&step_clock, &zero);
	return clock ? *(volatile u64 *)&clock->word : 0;
}

static __always_inline u32 ring_slot(void)
{
	return (step_word() >> 8) & (TOBS_RING - 1);
}

static __always_inline u32 cell_index(u32 op, u32 class, u32 role)
{
	return (op * TOBS_CLASSES + class) * TOBS_ROLES + role;
}

static __always_inline void bump(u64 *counter, u64 by)
{
	if (by)
		__sync_fetch_and_add(counter, by);
}

/* Add to the row of the current step. */
static __always_inline void add(u32 op, u32 class, u32 role, u64 count, u64 bytes, u64 ns,
				u64 wait_ns)
{
	u32 index =
		ring_slot() * (TOBS_OPS * TOBS_CLASSES * TOBS_ROLES) + cell_index(op, class, role);
	struct tobs_cell *cell = bpf_map_lookup_elem(&step_rows, &index);

	if (!cell)
		return;
	bump(&cell->count, count);
	bump(&cell->bytes, bytes);
	bump(&cell->ns, ns);
	bump(&cell->wait_ns, wait_ns);
}

/* By hand, because clang 14 cannot compile __builtin_clzll for BPF. Global, so that the verifier goes
 * through its branches once. */
__noinline u32 log2_bucket(u64 value)
{
	u32 log = 0;

	if (value >> 32) {
		value >>= 32;
		log += 32;
	}
	if (value >> 16) {
		value >>= 16;
		log += 16;
	}
	if (value >> 8) {
		value >>= 8;
		log += 8;
	}
	if (value >> 4) {
		value >>= 4;
		log += 4;
	}
	if (value >> 2) {
		value >>= 2;
		log += 2;
	}
	if (value >> 1)
		log += 1;
	return log < TOBS_BUCKETS ? log : TOBS_BUCKETS - 1;
}

/* Count a latency in the histograms of the run. */
static __always_inline void observe(u32 op, u32 class, u32 role, u64 ns)
{
	u32 index = cell_index(op, class, role), bucket = log2_bucket(ns);
	struct tobs_buckets *buckets = bpf_map_lookup_elem(&histograms, &index);

	if (buckets && bucket < TOBS_BUCKETS)
		__sync_fetch_and_add(&buckets->count[bucket], 1);
}

static __always_inline void observe_in_step(u64 ns)
{
	u32 index = ring_slot(), bucket = log2_bucket(ns);
	struct tobs_buckets *buckets = bpf_map_lookup_elem(&step_latency, &index);

	if (buckets && bucket < TOBS_BUCKETS)
		__sync_fetch_and_add(&buckets->count[bucket], 1);
}

#define COUNT_LOSS(what)                                                            \
	({                                                                          \
		u32 zero_ = 0;                                                      \
		struct tobs_losses *losses_ = bpf_map_lookup_elem(&losses, &zero_); \
		if (losses_)                                                        \
			__sync_fetch_and_add(&losses_->what, 1);                    \
	})

static __always_inline struct tobs_control *settings(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

#endif
