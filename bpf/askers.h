/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Who asked for a request that a limit of a control group has held back, where the programs of
 * limits.bpf.h cannot be attached. A worker of the kernel begins such a request, and nothing tells of
 * it in the task that asked. So it is kept who brought a folio into the page cache, once a process in
 * a group with a limit is followed, or a worker begins to read a file of ours; and who is inside of an
 * fsync of a file.
 */
#ifndef TRAINOBS_ASKERS_H
#define TRAINOBS_ASKERS_H

#include "file_class.h"
#include "request_class.h"

#define MAX_ASKERS 8192

struct asker {
	u64 inode; /* that the folio is one of, or the synced one itself */
	u8 class;
	u8 role;
	u8 slot;
	u8 unused[5]; /* by name, so that it is set: before v6.3 no unset bytes go into a map */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ASKERS);
	__type(key, u64); /* address of a folio that is read, or of an inode that is synced */
	__type(value, struct asker);
} askers SEC(".maps");

bool folios_kept;

static __always_inline bool limits_hidden(void)
{
	struct tobs_control *call = arguments();

	return call && call->limits_hidden;
}

static __always_inline void keep_asker(struct task_state *task, u64 key, u64 inode, u32 class)
{
	struct asker asker = {
		.inode = inode,
		.class = class,
		.role = task->role,
		.slot = task->slot,
	};

	bpf_map_update_elem(&askers, &key, &asker, BPF_ANY);
}

static __always_inline void keep_readers(void)
{
	*(volatile bool *)&folios_kept = true;
}

static __always_inline void keep_reader(struct task_state *task, struct folio *folio,
					struct inode *inode)
{
	if (*(volatile bool *)&folios_kept)
		keep_asker(task, (u64)folio, (u64)inode, class_of_request(task, REQ_OP_READ));
}

static __always_inline void begin_direct_read(struct task_state *task)
{
	struct tobs_settings *set = settings_of(task->slot);

	if (set)
		set->read_directly = 1;
}

static __always_inline void begin_sync(struct task_state *task)
{
	if (task->flags & CALL_REGULAR && limits_hidden())
		keep_asker(task, task->inode, task->inode, task->class);
}

static __always_inline void end_sync(struct task_state *task)
{
	u64 key = task->inode;

	if (task->flags & CALL_REGULAR && limits_hidden())
		bpf_map_delete_elem(&askers, &key);
}

/* Whether a session may have asked for a read that a worker begins. */
static __always_inline bool may_have_asked(u32 slot, u64 inode)
{
	struct tobs_settings *set = settings_of(slot);
	struct inode_key key;

	if (!set || !set->open)
		return false;
	if (set->read_directly)
		return true;
	if (!inode)
		return false;
	key = key_of((struct inode *)inode);
	return in_session(&session_classes, slot, &key);
}

struct unasked {
	u64 inode;
};

static long lose_if_asked(u32 slot, struct unasked *read)
{
	if (may_have_asked(slot, read->inode)) {
		COUNT_LOSS(slot, requests);
		keep_readers();
	}
	return 0;
}

/* Nobody knows who asked for a read. Global, as lose_request is. */
__noinline int lose_unasked(u32 slots, u64 inode)
{
	struct unasked read = { inode };

	if (HAS_HELPER(loop)) {
		bpf_loop(slots, lose_if_asked, &read, 0);
		return 0;
	}
	for (u64 slot = 0; slot < TOBS_SLOTS; slot++) {
		if (slot >= slots)
			break;
		lose_if_asked(slot, &read);
	}
	return 0;
}

/* Who asked for a request that a worker of the kernel begins; NULL: not known, or the kernel itself. */
static __always_inline struct asker *asker_of(struct bio *bio, u32 op)
{
	struct inode *inode;
	struct asker *asker;
	u64 key;

	if (!limits_hidden() || !(bpf_get_current_task_btf()->flags & PF_WQ_WORKER))
		return NULL;
	inode = bio_inode(bio);
	if (inode && !is_regular(inode))
		return NULL; /* metadata, which workers read anyway */
	key = op == REQ_OP_READ ? (u64)bio_folio(bio) : (u64)inode;
	asker = bpf_map_lookup_elem(&askers, &key);
	if (asker && asker->inode == (u64)inode)
		return asker;
	if (op == REQ_OP_READ)
		lose_unasked(used_slots(), (u64)inode);
	return NULL;
}

#endif
