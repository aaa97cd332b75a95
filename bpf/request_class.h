/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What a task asks a device for, where the pages of the request do not tell: compressed files of btrfs,
 * all of squashfs, overlayfs, direct I/O. A call names its file. In a fault of a mapping, and in
 * madvise, it is what was put into the page cache just before: such pages are of one fault.
 */
#ifndef TRAINOBS_REQUEST_CLASS_H
#define TRAINOBS_REQUEST_CLASS_H

#include "reading.h"
#include "tasks.h"

/* The kernel counts a fault when it is over (mm_account_fault). */
static __always_inline u64 faults_over(void)
{
	struct task_struct *current = bpf_get_current_task_btf();

	return current->min_flt + current->maj_flt;
}

/* `op`: REQ_OP_READ or another. */
static __always_inline u32 class_of_request(struct task_state *task, u32 op)
{
	u64 filled = task->filled;

	if (op == REQ_OP_READ && filled && filled >> 8 == faults_over())
		return filled & 0xff;
	if (op == REQ_OP_READ && task->flags & CALL_COPIES)
		return TOBS_OTHER; /* of the source, and the call has the class of its target */
	return class_of_call(task);
}

#endif
