// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * What trainobs_probe.h promises. It is linked to the object of a user's program as that is loaded,
 * by the version that runs, and gets the maps of the running session. So the user's object knows no
 * layout of ours. It has no license of its own: that of the user's object counts.
 *
 * `own_rows` has an element for each session that shares the programs, as many as the loader sets.
 */
#include "tasks.h"
#include "own.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct own_rows);
} own_rows SEC(".maps");

/* Global, so that it is verified once, and has a symbol to link to. */
int trainobs_add(u32 counter, u64 count, u64 value)
{
	struct task_state *task = current_state();
	u32 slot;

	if (!task)
		return 0;
	slot = task->slot;
	return own_add(task, clock_of(slot), bpf_map_lookup_elem(&own_rows, &slot), counter, count,
		       value);
}
