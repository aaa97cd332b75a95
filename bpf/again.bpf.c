// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * The second program behind one of a user's, loaded once for each, with maps of that one's object:
 * own_preemption.h. Of tasks that are not followed nothing counts, so nothing is called for them.
 */
#include "tasks.h"
#include "own_preemption.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} first SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct trainobs_entered);
} entered SEC(".maps");

static __always_inline bool was_left_out(u64 event)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct trainobs_entered *told;
	u64 *place;

	if (!state_of(task))
		return false;
	told = bpf_task_storage_get(&entered, task, NULL, 0);
	if (!told) {
		/* Of its first event: there is none, or no memory for the first one to tell of it. */
		bpf_task_storage_get(&entered, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
		return false;
	}
	place = trainobs_place(told, event);
	if (*place == event) {
		*place = 0;
		return false;
	}
	told->handed = event;
	return true;
}

static __always_inline int call_if_left_out(void *ctx)
{
	unsigned long flags;
	bool left_out;

	bpf_preempt_disable();
	left_out = was_left_out((u64)ctx);
	TRAINOBS_LET_GO(flags);
	if (left_out)
		bpf_tail_call(ctx, &first, 0);
	return 0;
}

/* The target is set as it is loaded. */
SEC("tp_btf")
int own_again(void *ctx)
{
	return call_if_left_out(ctx);
}

SEC("raw_tp")
int own_raw_again(void *ctx)
{
	return call_if_left_out(ctx);
}
