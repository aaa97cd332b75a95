/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Whose bios a limit of a control group holds back (io.max, blkio.throttle). A worker of the kernel
 * sends them on later, so that their requests begin in a task that nobody follows. The function that
 * looks at the limit runs in the task that asks, before, and where there is a limit alone.
 */
#include "file_class.h"
#include "request_class.h"

#define MAX_LIMITED 8192

/* A bio is known by its array of pages: so are the parts that it is split into, and the clones that
 * device mapper sends on. */
struct limited_bio {
	u32 left; /* bytes that did not complete yet */
	u8 class; /* as in struct request_start */
	u8 role;
	u8 slot;
	u8 unused; /* as in struct asker */
};

/* LRU: of some bios nothing is told when they complete. dm-crypt writes pages of its own in their place,
 * and one that must not wait may fail for that (EAGAIN). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_LIMITED);
	__type(key, u64);
	__type(value, struct limited_bio);
} limited_bios SEC(".maps");

/* Whether there was ever one: without, nobody looks for any. */
bool limits_seen;

static __always_inline u64 pages_of(struct bio *bio)
{
	return (u64)BPF_CORE_READ(bio, bi_io_vec);
}

static __always_inline struct limited_bio *limited(struct bio *bio)
{
	u64 key;

	if (!*(volatile bool *)&limits_seen)
		return NULL;
	key = pages_of(bio);
	return bpf_map_lookup_elem(&limited_bios, &key);
}

static __always_inline int keep_submitter(struct bio *bio)
{
	struct task_state *task = current_state();
	u32 op = bio->bi_opf & REQ_OP_MASK;
	struct limited_bio *others, kept = {};
	u64 key;

	if (!task || (op != REQ_OP_READ && op != REQ_OP_WRITE))
		return 0;
	*(volatile bool *)&limits_seen = true;
	others =
		limited(bio); /* buffers that are registered with io_uring have one array for all */
	kept.left = bio->bi_iter.bi_size + (others ? others->left : 0);
	kept.class = class_of_request(task, op);
	kept.role = task->role;
	kept.slot = task->slot;
	key = pages_of(bio);
	if (bpf_map_update_elem(&limited_bios, &key, &kept, BPF_ANY))
		COUNT_LOSS(task->slot, requests);
	return 0;
}

SEC("fentry/__blk_throtl_bio")
int BPF_PROG(tobs_blk_limit, struct bio *bio)
{
	return keep_submitter(bio);
}

/* Before v5.16 this function runs for every bio, with a limit or without. */
SEC("fentry/blk_throtl_bio")
int BPF_PROG(tobs_blk_limit_f, struct bio *bio)
{
	return keep_submitter(bio);
}

/* Some bytes of a bio have completed. */
static __always_inline void forget_submitter(struct bio *bio, u32 bytes)
{
	struct limited_bio *kept = limited(bio);
	u64 key;

	if (!kept || __sync_fetch_and_sub(&kept->left, bytes) > bytes)
		return;
	key = pages_of(bio);
	bpf_map_delete_elem(&limited_bios, &key);
}
