/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What stands before the text of a BccProbe. bcc rewrites what is in its main file alone, so this is
 * no header. The maps are those of the running session, pinned where nobody else sees them.
 */
#ifndef __always_inline /* without headers of the kernel */
#define __always_inline inline __attribute__((always_inline))
#endif
#ifndef NULL
#define NULL ((void *)0)
#endif

#include "trainobs.h"
#include "task_state.h"
#include "own.h"

#define TRAINOBS_COUNTER(index, name, unit)
#define TRAINOBS_VALUE(index, name, unit)

BPF_TABLE_PINNED("array", u32, struct tobs_clock, trainobs_clock, 1, TRAINOBS_PINS "/clock");
BPF_TABLE_PINNED("array", u32, struct own_rows, trainobs_rows, 1, TRAINOBS_PINS "/rows");

struct trainobs_tasks {
	int key;
	struct task_state leaf;
	void *(*task_storage_get)(void *task, void *value, int flags);
	int (*task_storage_delete)(void *task);
	u32 flags;
};
__attribute__((
	section("maps/task_storage:" TRAINOBS_PINS
		"/tasks"))) struct trainobs_tasks trainobs_tasks = { .flags = BPF_F_NO_PREALLOC };

static __always_inline int trainobs_add(u32 counter, u64 count, u64 value)
{
	struct task_state *task =
		trainobs_tasks.task_storage_get(bpf_get_current_task_btf(), NULL, 0);
	u32 zero = 0;

	return own_add(task, trainobs_clock.lookup(&zero), trainobs_rows.lookup(&zero), counter,
		       count, value);
}
