/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Block requests, with the classes of the files whose pages they carry. */
#include "file_class.h"

#define MAX_BIOS 2048 /* of one request: more than its segments, each of which may be one */

struct request_start {
	u64 ns;
	enum tobs_class class; /* for direct I/O, which carries no page of a file */
	enum tobs_role role;
	u32 slot; /* of the session that it is issued for; none if the role is TOBS_KERNEL */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct request_start);
} requests SEC(".maps");

/* A request while its bios are walked. */
struct request_end {
	struct bio *bio; /* the next one */
	u64 ns;		 /* 0: not over */
	u64 counted;	 /* sessions, a bit each, in which it was counted */
	u32 left;	 /* bytes that completed and are not counted yet */
	enum tobs_op op;
	struct request_start start;
};

static long count_lost_request(u32 slot, void *unused)
{
	COUNT_LOSS(slot, requests);
	return 0;
}

/*
 * A request begins where its task is known, but has its size only when no more can be merged into
 * it. Writes of others are kept too: write-back puts files of ours and of others into one.
 */
SEC("tp_btf/block_io_start")
int BPF_PROG(tobs_blk_start, struct request *request)
{
	u32 op = request->cmd_flags & REQ_OP_MASK;
	struct request_start start = { .role = TOBS_KERNEL };
	struct task_state *task = current_state();
	u64 key = (u64)request;

	if (op != REQ_OP_WRITE && (op != REQ_OP_READ || !task))
		return 0;
	if (task) {
		start.role = task->role;
		start.slot = task->slot;
		start.class = task->call ? task->class : TOBS_OTHER;
	}
	start.ns = bpf_ktime_get_ns();
	/* Requests are used again: one that is still there ended without our being told. */
	if (bpf_map_update_elem(&requests, &key, &start, BPF_NOEXIST)) {
		bpf_loop(used_slots(), count_lost_request, NULL, 0);
		bpf_map_update_elem(&requests, &key, &start, BPF_ANY);
	}
	return 0;
}

/* The request becomes part of another, which takes over its bios. */
SEC("tp_btf/block_rq_merge")
int BPF_PROG(tobs_blk_merge, struct request *request)
{
	u64 key = (u64)request;

	bpf_map_delete_elem(&requests, &key);
	return 0;
}

/* A bio that completed, while it is offered to the sessions. */
struct bio_part {
	struct request_end *end;
	struct inode_key key; /* its file, unless it carries none */
	u32 bytes;
	bool has_inode;
	bool may_be_call; /* its class may be that of the call which issued it */
};

/* Direct I/O carries anonymous pages, overlayfs those of another inode: for these the call knows
 * the class. The inode of metadata is the block device. */
static __always_inline struct bio_part part_of(struct request_end *end, struct bio *bio, u32 bytes)
{
	struct inode *inode = bio_inode(bio);
	struct bio_part part = { .end = end, .bytes = bytes, .may_be_call = true };

	if (inode) {
		part.key = key_of(inode);
		part.has_inode = true;
		part.may_be_call = is_regular(inode);
	}
	return part;
}

/* What no task of a session issued is the session's if it writes back a file of it. */
static __always_inline bool is_of_session(u32 role, u32 op, u32 class)
{
	return role != TOBS_KERNEL ||
	       (op == TOBS_BLOCK_WRITE && (class == TOBS_DATA || class == TOBS_CHECKPOINT));
}

static long count_part(u32 slot, struct bio_part *part)
{
	struct request_end *end = part->end;
	u32 role = end->start.slot == slot ? end->start.role : TOBS_KERNEL;
	u32 class = part->has_inode ? known_class(slot, &part->key) : TOBS_OTHER;
	struct account to;

	if (class == TOBS_OTHER && part->may_be_call && role != TOBS_KERNEL)
		class = end->start.class;
	if (!is_of_session(role, end->op, class))
		return 0;
	to = account_in(slot, role);
	if (!end->ns || end->counted & 1ULL << slot) {
		add(to, end->op, class, 0, part->bytes, 0, 0);
		return 0;
	}
	end->counted |= 1ULL << slot;
	add(to, end->op, class, 1, part->bytes, end->ns, 0);
	observe(to, end->op, class, end->ns);
	if (end->op == TOBS_BLOCK_READ)
		observe_in_step(to, end->ns);
	return 0;
}

/* A read is of whoever issued it; a write may carry files of any session, whoever issued it. */
static long count_bio(u32 index, struct request_end *end)
{
	struct bio *bio = end->bio;
	u32 bytes = BPF_CORE_READ(bio, bi_iter.bi_size);
	struct bio_part part = part_of(end, bio, bytes < end->left ? bytes : end->left);

	end->left -= part.bytes;
	end->bio = BPF_CORE_READ(bio, bi_next);
	if (end->op == TOBS_BLOCK_READ)
		count_part(end->start.slot, &part);
	else
		bpf_loop(used_slots(), count_part, &part, 0);
	return !end->left || !end->bio;
}

/* Before whoever waits for the request is woken, and so before it can begin another step. */
SEC("tp_btf/block_rq_complete")
int BPF_PROG(tobs_blk_done, struct request *request, int error, unsigned int bytes)
{
	u64 key = (u64)request;
	struct request_start *start = bpf_map_lookup_elem(&requests, &key);
	bool over = bytes >= request->__data_len;
	struct request_end end = {};

	if (!start)
		return 0;
	end.start = *start;
	end.bio = request->bio;
	end.left = bytes;
	end.ns = over ? bpf_ktime_get_ns() - start->ns : 0;
	end.op = (request->cmd_flags & REQ_OP_MASK) == REQ_OP_READ ? TOBS_BLOCK_READ :
								     TOBS_BLOCK_WRITE;
	if (over)
		bpf_map_delete_elem(&requests, &key);
	if (end.bio) /* bpf_loop is older than block_io_start: v5.17, v6.5 */
		bpf_loop(MAX_BIOS, count_bio, &end, 0);
	return 0;
}
