/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Page cache: what had to be brought in, and who had to wait for it. */
#include "askers.h"

/* Class of a file without a call that names it: it may have been mapped before we came. */
static __always_inline u32 mapped_class(struct task_state *task, struct inode *inode)
{
	return is_regular(inode) ? regular_class(task->slot, (u64)inode, 0) : TOBS_OTHER;
}

/* Likewise, where a task touches it in a mapping, or a ring reads it: this makes it data, as a read by
 * a call does. But what may be run does not become data, for code is mapped as well, nor what the run
 * has opened for writing, which may be a loader's scratch. Global, as class_by_path. */
__noinline u32 touched_class(struct task_state *task, u64 inode_address)
{
	struct inode *inode = (struct inode *)inode_address;
	struct inode_class *known;
	struct inode_key key;
	u32 class;

	if (!task || !is_regular(inode))
		return TOBS_OTHER;
	class = regular_class(task->slot, inode_address, 0);
	if (class != TOBS_OTHER || !infers_touched(task) ||
	    READ(struct inode, inode, i_mode) & S_IXUGO)
		return class;
	key = key_of(inode);
	known = in_session(&session_classes, task->slot, &key);
	if (!known || known->written)
		return class;
	keep_class(task->slot, inode_address, TOBS_DATA, known->epoch, 0);
	return TOBS_DATA;
}

/* Pages that no call asked for. Those of a file that is of no class, in who loads, may be data. */
static __always_inline void count_filled(struct task_state *task, struct inode *inode, u64 bytes)
{
	u32 class = mapped_class(task, inode);

	task->filled = faults_over() << 8 | class;
	count_for(task, TOBS_FAULT_FILL, class, bytes, 0);
	if (class == TOBS_OTHER && loads(task))
		count_for(task, TOBS_UNNAMED_FILL, TOBS_OTHER, bytes, 0);
}

/* The threads of io_uring make no calls: they are inside one. */
static __always_inline u32 call_or_ring_of(struct task_state *task)
{
	if (in_call(task, NO_CALL) && bpf_get_current_task_btf()->flags & PF_IO_WORKER)
		return TOBS_URING_ENTER;
	return call_of(task);
}

/* The pages of a file on overlayfs are those of a file beneath: it has the class of the one that the
 * call names, so that its write-back, and reads of it in a mapping, are known. */
static __always_inline void keep_beneath(struct task_state *task, struct inode *inode)
{
	if (task->class == TOBS_OTHER || task->flags & CALL_COPIES ||
	    !(task->flags & CALL_REGULAR) || (u64)inode == task->inode ||
	    !is_overlaid((struct inode *)task->inode) ||
	    known_class(task->slot, (u64)inode) != TOBS_OTHER)
		return;
	keep_class(task->slot, (u64)inode, task->class, task->class_epoch, 0);
}

/* Whether a fault of a file is handled. The kernel counts one when it is over (mm_account_fault). */
static __always_inline bool is_in_fault(struct task_state *task)
{
	return task->faults == faults_over() + 1;
}

static __always_inline void count_added(struct task_state *task, struct folio *folio)
{
	struct inode *inode = folio_inode(folio);
	u32 op = call_or_ring_of(task);
	u64 pages;

	if (!is_regular(inode) || holds_packed(inode))
		return; /* metadata, kept by the block device; or not a file's pages yet */
	pages = folio_pages(folio);
	if (is_in_fault(task))
		op = NO_CALL; /* a call reads into a mapping, or writes from it: its pages are these */
	switch (op) {
	case TOBS_READ:
	case TOBS_HINT:
		task->added_pages += pages; /* counted when the call ends */
		keep_beneath(task, inode);
		break;
	case TOBS_WRITE:
		/* A page that is not written to is one of a source. */
		if (!(task->flags & CALL_REGULAR) || (u64)inode != task->inode)
			task->added_pages += pages;
		keep_beneath(task, inode);
		break;
	case TOBS_URING_ENTER:
		count_for(task, TOBS_CACHE_MISS, touched_class(task, (u64)inode),
			  bytes_of_pages(pages), 0);
		break;
	case NO_CALL: /* a fault, or a call that we do not follow, such as madvise */
	case TOBS_MMAP:
		count_filled(task, inode, bytes_of_pages(pages));
		break;
	}
	keep_reader(task, folio, inode);
}

PREEMPTIBLE_PROG("tp_btf/mm_filemap_add_to_page_cache", tobs_cache_add, struct folio *folio)
{
	struct task_state *task = task_of_event(SEEN_CACHE_ADD, again);

	if (task)
		KEEPING_CPU(count_added(task, folio));
	return 0;
}

/* A call that copies reads its source. Behind it the flag may be there still, which harms nothing: each
 * call begins with none. */
static __always_inline bool is_in_read(struct task_state *task)
{
	return task && (in_call(task, TOBS_READ) || task->flags & CALL_COPIES);
}

PREEMPTIBLE_PROG("tp_btf/page_cache_sync_ra", tobs_ra_wait, struct inode *inode)
{
	struct task_state *task = current_state();

	if (is_in_read(task))
		KEEPING_CPU(task->flags |= CALL_READ_AHEAD);
	return 0;
}

/* Before v6.18 there is no such tracepoint; the function is as old as v5.10. */
SEC("fentry/page_cache_sync_ra")
int BPF_PROG(tobs_ra_wait_f)
{
	struct task_state *task = current_state();

	if (is_in_read(task))
		task->flags |= CALL_READ_AHEAD;
	return 0;
}

/* Whether a fault is handled a second time, since it had to wait for its page. Mostly the page is then
 * mapped with those around it, without an event; but where a page is as large as that (64 KiB), not. */
static __always_inline bool is_same_fault(struct task_state *task)
{
	bool is_same = is_in_fault(task);

	task->faults = faults_over() + 1;
	return is_same;
}

static __always_inline void count_fault(struct task_state *task, struct inode *inode)
{
	if (!is_same_fault(task))
		add(account_of(task), TOBS_FAULT, touched_class(task, (u64)inode), 1, 0, 0, 0);
}

PREEMPTIBLE_PROG("tp_btf/mm_filemap_fault", tobs_fault, struct address_space *mapping)
{
	struct task_state *task = task_of_event(SEEN_FAULT, again);

	if (task)
		KEEPING_CPU(count_fault(task, BPF_CORE_READ(mapping, host)));
	return 0;
}

/* Before v6.12 there is no such tracepoint. */
SEC("fentry/filemap_fault")
int BPF_PROG(tobs_fault_f, struct vm_fault *fault)
{
	struct task_state *task = current_state();

	if (task)
		count_fault(task, BPF_CORE_READ(fault, vma, vm_file, f_inode));
	return 0;
}
