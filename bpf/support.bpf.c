// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * What trainobs_probe.h promises. It is linked to the object of a user's program as that is loaded,
 * by the version that runs, and gets the maps of the running session. So the user's object knows no
 * layout of ours. It has no license of its own: that of the user's object counts.
 */
#include "tasks.h"

struct own_rows {
	struct tobs_own_row rows[TOBS_RING];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct own_rows);
} own_rows SEC(".maps");

#define OWN_CELLS (TOBS_OWN * TOBS_ROLES)

/* Global, so that it is verified once, and has a symbol to link to. */
int trainobs_add(u32 counter, u64 count, u64 value)
{
	struct task_state *task = current_state();
	struct tobs_own_cell *cell;
	struct own_rows *own;
	struct tobs_clock *clock;
	u32 zero = 0, role, index;

	if (!task || counter >= TOBS_OWN)
		return 0;
	role = task->role;
	clock = clock_of(task->slot);
	own = bpf_map_lookup_elem(&own_rows, &zero);
	if (!clock || !own || role >= TOBS_ROLES)
		return 0;
	index = (step_word(clock) >> 8) & (TOBS_RING - 1);
	index = index * OWN_CELLS + counter * TOBS_ROLES + role;
	if (index >= TOBS_RING * OWN_CELLS)
		return 0;
	cell = (struct tobs_own_cell *)own->rows + index;
	if (count)
		__sync_fetch_and_add(&cell->count, count);
	if (value)
		__sync_fetch_and_add(&cell->value, value);
	return role + 1;
}
