/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The maps, and the two ways to add to them. */
#ifndef TRAINOBS_MAPS_H
#define TRAINOBS_MAPS_H

#include "reading.h"
#include "tasks.h"

const volatile struct tobs_machine machine;

/* Whether files and peers are counted, which is for a single session: bpf/build.py. */
#ifdef TOBS_FILES
#define COUNTS_FILES true
#else
#define COUNTS_FILES false
#endif

static __always_inline u64 bytes_of_pages(u64 pages)
{
	return pages << (machine.page_shift & 31);
}

/* Bytes, rounded up to whole pages. */
static __always_inline u64 whole_pages(u64 bytes)
{
	u64 page = bytes_of_pages(1);

	return (bytes + page - 1) & -page;
}

struct sums_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TOBS_ROW_ELEMENTS + 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct tobs_rows));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TOBS_SLOTS);
	__type(key, u32);
	__array(values, struct sums_map);
} session_sums SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TOBS_SLOTS);
	__type(key, u32);
	__type(value, struct tobs_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tobs_control);
} control SEC(".maps");

static __always_inline struct tobs_counts *counts_of(u32 slot)
{
	u32 last = TOBS_ROW_ELEMENTS;

	return in_session(&session_sums, slot, &last);
}

/* Where something counts: in a session, at its step, in the role of who did it. */
struct account {
	struct tobs_rows *rows;	    /* those with that of the step; NULL: the session is over */
	struct tobs_counts *counts; /* likewise */
	u32 row;		    /* in the ring */
	u32 role;
};

/* What is missing ends it at once: so the verifier need not go on with what is not there. */
static __always_inline struct account account_in(u32 slot, u32 role)
{
	struct tobs_clock *clock = clock_of(slot);
	u32 element, last = TOBS_ROW_ELEMENTS;
	struct account to = { .role = role };
	void *sums;

	if (!clock)
		return to;
	to.row = (step_word(clock) >> 8) & (TOBS_RING - 1);
	sums = bpf_map_lookup_elem(&session_sums, &slot);
	if (!sums)
		return to;
	to.counts = bpf_map_lookup_elem(sums, &last);
	if (!to.counts)
		return to;
	element = to.row / TOBS_ROWS_EACH;
	to.rows = bpf_map_lookup_elem(sums, &element);
	return to;
}

static __always_inline struct account account_of(struct task_state *task)
{
	return account_in(task->slot, task->role);
}

static __always_inline u32 cell_index(u32 op, u32 class, u32 role)
{
	return (op * TOBS_CLASSES + class) * TOBS_ROLES + role;
}

/*
 * The verifier goes on from a place once for each way that leads there with numbers that it knows other
 * things of, if a condition behind it depends on them. These two make one way of many: the same number,
 * of which it knows nothing, since it has come from a map; and one that it does not hold for the same,
 * so that a condition on it says nothing of the other.
 */
static __always_inline u64 unknown(struct task_state *task, u64 number)
{
	*(volatile u64 *)&task->scratch = number;
	return *(volatile u64 *)&task->scratch;
}

static __always_inline u64 apart(u64 number)
{
	asm volatile("%0 |= 0" : "+r"(number));
	return number;
}

static __always_inline void bump(u64 *counter, u64 by)
{
	if (__builtin_constant_p(by) ? by : apart(by))
		__sync_fetch_and_add(counter, by);
}

/* Add to the row of the current step. */
static __always_inline void add(struct account to, u32 op, u32 class, u64 count, u64 bytes, u64 ns,
				u64 wait_ns)
{
	u32 number, index;
	struct tobs_cell *cell;

	if (!to.rows || !to.counts)
		return;
	number = cell_index(op, class, to.role);
	/* Or a compiler that sees its range drops what the verifier asks for, which before v5.16 or so
	 * loses sight of 32 bits that were put on the stack. */
	barrier_var(number);
	index = to.row % TOBS_ROWS_EACH * TOBS_CELLS + number;
	if (number >= TOBS_CELLS)
		return;
	/* Before the cell, so that who finds a number there finds this, too. Written once: all CPUs
	 * read it. */
	if (!to.counts->touched[number])
		to.counts->touched[number] = 1;
	barrier_var(index); /* likewise */
	if (index >= TOBS_ROWS_EACH * TOBS_CELLS)
		return;
	cell = (struct tobs_cell *)to.rows + index;
	bump(&cell->count, count);
	bump(&cell->bytes, bytes);
	bump(&cell->ns, ns);
	bump(&cell->wait_ns, wait_ns);
}

/* Count one for a task, with the wait of its call if there is a time. Global, as class_by_path of
 * inode_class.h: for what is rare, since it looks up the account again. */
__noinline int count_for(struct task_state *task, u32 op, u32 class, u64 bytes, u64 ns)
{
	if (task)
		add(account_of(task), op, class, 1, bytes, ns, ns ? task->wait_ns : 0);
	return 0;
}

/* How far to shift a number whose bits from `shift` on are not all zero; else 0. */
static __always_inline u64 shift_of(u64 value, u32 shift)
{
	u64 high = value >> shift, negative = -high;

	barrier_var(negative); /* or a compiler sees a condition in it */
	return ((high | negative) >> 63) * shift;
}

/* By hand, because clang 14 cannot compile __builtin_clzll for BPF, and without conditions, since the
 * verifier would go through 64 ways. */
static __always_inline u32 log2_bucket(u64 value)
{
	u64 log = 0, shift;

#pragma unroll
	for (u32 half = 32; half; half /= 2) {
		shift = shift_of(value, half);
		value >>= shift;
		log += shift;
	}
	return log;
}

static __always_inline void count_latency(struct tobs_buckets *buckets, u64 ns)
{
	u64 bucket = log2_bucket(ns);

	barrier_var(bucket); /* or a compiler drops what the verifier asks for */
	if (bucket >= TOBS_BUCKETS)
		bucket = TOBS_BUCKETS - 1;
	__sync_fetch_and_add(&buckets->count[bucket], 1);
}

/* Count a latency in the histograms of the session. */
static __always_inline void observe(struct account to, u32 op, u32 class, u64 ns)
{
	u32 index = cell_index(op, class, to.role);

	barrier_var(index); /* as in add */
	if (to.counts && index < TOBS_CELLS)
		count_latency((struct tobs_buckets *)to.counts->histograms + index, ns);
}

/* A function of its own, so that the structures are in the BTF of the object for the tests. */
static __noinline int count_in_step(struct tobs_rows *rows, struct tobs_counts *counts, u32 row,
				    u64 ns)
{
	if (rows && counts && row < TOBS_RING)
		count_latency(&counts->step_latency[row], ns);
	return 0;
}

static __always_inline void observe_in_step(struct account to, u64 ns)
{
	count_in_step(to.rows, to.counts, to.row, ns);
}

#define COUNT_LOSS(slot, what)                                          \
	({                                                              \
		struct tobs_counts *counts_ = counts_of(slot);          \
		if (counts_)                                            \
			__sync_fetch_and_add(&counts_->losses.what, 1); \
	})

static __always_inline struct tobs_settings *settings_of(u32 slot)
{
	return bpf_map_lookup_elem(&settings, &slot);
}

static __always_inline bool is_open(u32 slot)
{
	struct tobs_settings *set = settings_of(slot);

	return set && set->open;
}

/* A moment of the kernel's clock, as CLOCK_MONOTONIC of a session's processes has it. */
static __always_inline u64 moment_of(u32 slot, u64 ns)
{
	struct tobs_settings *set = settings_of(slot);

	return set ? ns + set->clock_ahead_ns : ns;
}

static __always_inline struct tobs_control *arguments(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

/* Slots that a session may be in. */
static __always_inline u32 used_slots(void)
{
	struct tobs_control *call = arguments();

	return call && call->slots < TOBS_SLOTS ? call->slots : TOBS_SLOTS;
}

#endif
