/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How programs of a user's count, whoever compiles them. */
#ifndef TRAINOBS_OWN_H
#define TRAINOBS_OWN_H

#include "task_state.h"

struct own_rows {
	struct tobs_own_row rows[TOBS_RING];
};

#define OWN_CELLS (TOBS_OWN * TOBS_ROLES)

/* See trainobs_add in trainobs_probe.h. */
static __always_inline int own_add(struct task_state *task, struct tobs_clock *clock,
				   struct own_rows *own, u32 counter, u64 count, u64 value)
{
	struct tobs_own_cell *cell;
	u32 role, index;

	if (!task || !clock || !own || counter >= TOBS_OWN)
		return 0;
	role = task->role;
	if (role >= TOBS_ROLES)
		return 0;
	index = (*(volatile u64 *)&clock->word >> 8) & (TOBS_RING - 1);
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

#endif
