/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Block requests, with the classes of the files whose pages they carry. */
#include "file_class.h"

#define MAX_BIOS 2048 /* of one request: more than its segments, each of which may be one */

struct request_start {
	u64 ns;
	enum tobs_class class; /* for direct I/O, which carries no page of a file */
	enum tobs_role role;
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
	u64 ns;		 /* 0: counted, or not over */
	u32 left;	 /* bytes that completed and are not counted yet */
	enum tobs_op op;
	struct request_start start;
};

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
		start.class = task->call ? task->class : TOBS_OTHER;
	}
	start.ns = bpf_ktime_get_ns();
	/* Requests are used again: one that is still there ended without our being told. */
	if (bpf_map_update_elem(&requests, &key, &start, BPF_NOEXIST)) {
		COUNT_LOSS(requests);
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

/* Direct I/O carries anonymous pages, overlayfs those of another inode: for these the call knows
 * the class. The inode of metadata is the block device. */
static __always_inline u32 bio_class(struct bio *bio, u32 class_of_call)
{
	struct inode *inode = bio_inode(bio);
	u32 class = inode ? known_class(inode) : TOBS_OTHER;

	return class == TOBS_OTHER && (!inode || is_regular(inode)) ? class_of_call : class;
}

/* What no task of ours issued is ours if it writes back a file of ours. */
static __always_inline bool is_ours(u32 role, u32 op, u32 class)
{
	return role != TOBS_KERNEL ||
	       (op == TOBS_BLOCK_WRITE && (class == TOBS_DATA || class == TOBS_CHECKPOINT));
}

static long count_bio(u32 index, struct request_end *end)
{
	struct bio *bio = end->bio;
	u32 bytes = BPF_CORE_READ(bio, bi_iter.bi_size);
	u32 class = bio_class(bio, end->start.class);
	u32 role = end->start.role;

	if (bytes > end->left)
		bytes = end->left;
	end->left -= bytes;
	end->bio = BPF_CORE_READ(bio, bi_next);
	if (is_ours(role, end->op, class)) {
		add(end->op, class, role, end->ns ? 1 : 0, bytes, end->ns, 0);
		if (end->ns) {
			observe(end->op, class, role, end->ns);
			if (end->op == TOBS_BLOCK_READ)
				observe_in_step(end->ns);
		}
		end->ns = 0;
	}
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
