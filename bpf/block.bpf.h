/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Block requests, with the classes of the files whose pages they carry. */
#include "askers.h"
#include "limits.bpf.h"

#define MAX_BIOS 2048 /* of one request: more than its segments, each of which may be one */
#define MAX_FRONT_MERGES 16
#define BIOS_AT_ONCE 16

struct request_start {
	u64 ns;
	enum tobs_class class; /* for direct I/O, which carries no page of a file */
	enum tobs_role role;
	u32 slot; /* of the session that it is issued for; none if the role is TOBS_KERNEL */
	u32 use;  /* of the structure, where that was needed */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct request_start);
} requests SEC(".maps");

/* A request while its bios are walked, and each of them offered to the sessions. */
struct request_end {
	struct bio *bio; /* the next one */
	u64 ns;		 /* 0: not over */
	u64 counted;	 /* sessions, a bit each, in which it was counted */
	u32 left;	 /* bytes that completed and are not counted yet */
	u32 slot;	 /* the session to offer the bio to next, ... */
	u32 first_slot;	 /* ... the first one and ... */
	u32 end_slot;	 /* ... the one after the last */
	enum tobs_op op;
	struct request_start start;
};

static long lose_in_session(u32 slot, void *unused)
{
	COUNT_LOSS(slot, requests);
	return 0;
}

/* Of which session the request was is not known any more. Global, so that it is verified once. */
__noinline int lose_request(u32 slots)
{
	if (HAS_HELPER(loop)) {
		bpf_loop(slots, lose_in_session, NULL, 0);
		return 0;
	}
	for (u64 slot = 0; slot < TOBS_SLOTS; slot++) {
		if (slot >= slots)
			break;
		lose_in_session(slot, NULL);
	}
	return 0;
}

/* Structures of requests are used again: what is still kept for one ended without our being told.
 * It must not count as the beginning of whatever the structure is used for now. */
static __always_inline void forget_request(u64 key)
{
	if (!bpf_map_delete_elem(&requests, &key))
		lose_request(used_slots());
}

static __always_inline void keep_request(u64 key, struct request_start *start)
{
	if (bpf_map_update_elem(&requests, &key, start, BPF_ANY))
		lose_request(used_slots());
}

/* Who asked for a request that is begun for others: a limit may have held it back. Then a thread of the
 * kernel begins it. */
static __always_inline bool take_submitter(struct bio *bio, u32 op, struct request_start *start)
{
	struct limited_bio *kept;
	struct asker *asker;

	if (!(bpf_get_current_task_btf()->flags & PF_KTHREAD))
		return false;
	kept = limited(bio);
	if (kept) {
		start->role = kept->role;
		start->slot = kept->slot;
		start->class = kept->class;
		return true;
	}
	asker = asker_of(bio, op);
	if (!asker)
		return false;
	start->role = asker->role;
	start->slot = asker->slot;
	start->class = asker->class;
	return true;
}

/*
 * A request begins where its task is known, but has its size only when no more can be merged into
 * it. Writes of others are kept too: write-back puts files of ours and of others into one.
 */
static __always_inline int begin_request(u64 key, struct bio *bio, u32 flags)
{
	u32 op = flags & REQ_OP_MASK;
	struct request_start start = { .role = TOBS_KERNEL };
	struct task_state *task = current_state();

	forget_request(key);
	if ((op != REQ_OP_WRITE && op != REQ_OP_READ) || !bio->bi_iter.bi_size)
		return 0; /* a flush is a write of nothing */
	if (task) {
		start.role = task->role;
		start.slot = task->slot;
		start.class = class_of_request(task, op);
	} else if (!take_submitter(bio, op, &start) && op == REQ_OP_READ) {
		return 0;
	}
	if (flags & REQ_META) /* of no file, as the log of xfs, though the call that waits is */
		start.class = TOBS_OTHER;
	start.ns = bpf_ktime_get_ns();
	keep_request(key, &start);
	return 0;
}

SEC("tp_btf/block_io_start")
int BPF_PROG(tobs_blk_start, struct request *request)
{
	/* One that is made for a bio has no function yet that ends it. A clone has, which multipath
	 * passes on of a request that was counted. */
	if (request->end_io) {
		forget_request((u64)request);
		return 0;
	}
	return begin_request((u64)request, request->bio, request->cmd_flags);
}

/* The request becomes part of another, which takes over its bios. */
SEC("tp_btf/block_rq_merge")
int BPF_PROG(tobs_blk_merge, struct request *request)
{
	u64 key = (u64)request;

	bpf_map_delete_elem(&requests, &key);
	return 0;
}

/*
 * Before v6.5 nothing tells of a request in the task that asks for it. Such kernels tell there of
 * the bio that a request is made for, and of the request when it goes to the device, in any task:
 * until then a request is known by that bio.
 */
SEC("tp_btf/block_getrq")
int BPF_PROG(tobs_blk_getrq, struct bio *bio)
{
	return begin_request((u64)bio, bio, bio->bi_opf);
}

SEC("tp_btf/block_rq_merge")
int BPF_PROG(tobs_blk_merge_b, struct request *request)
{
	u64 key = (u64)request->bio;

	bpf_map_delete_elem(&requests, &key);
	return 0;
}

/* Tells one use of the structure of a request from the next, which may have the same bio, or begin without
 * our being told, as discards do. Where a device keeps no statistics the time is 0. The bio is read by
 * helper, which gives a number: half of a pointer is refused. */
static __always_inline u32 use_of(struct request *request)
{
	return (u64)BPF_CORE_READ(request, bio) ^ request->start_time_ns;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(tobs_blk_issue, struct request *request)
{
	struct bio *bio = request->bio;
	struct request_start start, *kept;
	u64 request_key = (u64)request, key;
	u32 use = use_of(request);

	/* It is the first one, unless others were put in front of it. */
	for (u64 i = 0; i < MAX_FRONT_MERGES && bio; i++) {
		key = (u64)bio;
		kept = bpf_map_lookup_elem(&requests, &key);
		if (kept) {
			start = *kept;
			start.use = use;
			bpf_map_delete_elem(&requests, &key);
			forget_request(request_key);
			keep_request(request_key, &start);
			return 0;
		}
		bio = BPF_CORE_READ(bio, bi_next);
	}
	/* Of nobody who is followed, unless it is issued for the second time. */
	kept = bpf_map_lookup_elem(&requests, &request_key);
	if (kept && kept->use && kept->use != use)
		forget_request(request_key);
	return 0;
}

/* Direct I/O carries anonymous pages, overlayfs and EROFS those of another inode: for these the call
 * knows the class. The inode of metadata is the block device. */
static __always_inline u32 bio_class(struct bio *bio, u32 slot, u32 class_of_call)
{
	struct inode *inode = bio_inode(bio);
	u32 class = inode ? known_class(slot, (u64)inode) : TOBS_OTHER;

	if (class == TOBS_OTHER && (!inode || is_regular(inode) || holds_packed(inode)))
		return class_of_call;
	return class;
}

/* What no task of a session issued is the session's if it writes back a file of it. */
static __always_inline bool is_of_session(u32 role, u32 op, u32 class)
{
	return role != TOBS_KERNEL ||
	       (op == TOBS_BLOCK_WRITE && (class == TOBS_DATA || class == TOBS_CHECKPOINT));
}

/* Global, as class_by_path is; so what is more than five numbers comes packed. */
__noinline int count_bytes(u32 slot, u32 op_class_role, u32 bytes, u64 ns)
{
	u32 op = op_class_role >> 16, class = op_class_role >> 8 & 0xff;
	struct account to = account_in(slot, op_class_role & 0xff);

	if (!to.rows)
		return 0;
	add(to, op, class, !!ns, bytes, ns, 0);
	if (ns) {
		observe(to, op, class, ns);
		if (op == TOBS_BLOCK_READ)
			observe_in_step(to, ns);
	}
	return 0;
}

/* Count `bytes` of a bio in a session, and the request if `ns` is how long it took; false: it is none
 * of the session's. */
__noinline u32 count_block(u32 slot, u64 address, u32 op_class_role, u32 bytes, u64 ns)
{
	u32 op = op_class_role >> 16, role = op_class_role & 0xff;
	u32 class = bio_class((struct bio *)address, slot, op_class_role >> 8 & 0xff);

	if (!is_of_session(role, op, class))
		return false;
	count_bytes(slot, op << 16 | class << 8 | role, bytes, ns);
	return true;
}

static __always_inline void count_in_session(struct request_end *end, u32 slot, u32 bytes)
{
	bool own = end->start.role != TOBS_KERNEL && end->start.slot == slot;
	u32 role = own ? end->start.role : TOBS_KERNEL;
	u32 class = own ? end->start.class : TOBS_OTHER;
	u64 ns = end->counted >> slot & 1 ? 0 : end->ns;

	if (count_block(slot, (u64)end->bio, end->op << 16 | class << 8 | role, bytes, ns))
		end->counted |= 1ULL << slot;
}

/* One session for each bio: not a loop in a loop, through which the verifier goes far more often. Global,
 * so that it goes through this once, and not once for each turn that knows more of the request. */
__noinline int count_next(struct request_end *end)
{
	struct bio *bio;
	u32 slot, bytes;

	if (!end)
		return 1;
	slot = end->slot++ & (TOBS_SLOTS - 1);
	bio = end->bio;
	bytes = READ(struct bio, bio, bi_iter.bi_size);
	if (bytes > end->left)
		bytes = end->left;
	if (is_open(slot))
		count_in_session(end, slot, bytes);
	if (end->slot < end->end_slot)
		return 0;
	forget_submitter(bio, bytes);
	end->slot = end->first_slot;
	end->left -= bytes;
	end->bio = BPF_CORE_READ(bio, bi_next);
	return !end->left || !end->bio;
}

static long count_bio(u32 index, struct request_end *end)
{
	u64 over = count_next(end);

	/* Or a compiler knows that it is 0 or 1, which the verifier asks for. */
	barrier_var(over);
	return over != 0;
}

/* For kernels without bpf_loop: global, so that a loop of it is verified as quickly as one turn. */
__noinline int count_bios(struct request_end *end)
{
	if (HAS_HELPER(loop))
		return 1;
	for (u64 i = 0; end && i < BIOS_AT_ONCE; i++)
		if (count_next(end))
			return 1;
	return !end;
}

static __always_inline void count_all_bios(struct request_end *end, u32 most)
{
	if (HAS_HELPER(loop)) {
		bpf_loop(most, count_bio, end, 0);
		return;
	}
	for (u64 i = 0; i < MAX_BIOS / BIOS_AT_ONCE; i++)
		if (count_bios(end))
			return;
	lose_request(used_slots());
}

/* A read is of whoever issued it; a write may carry files of any session, whoever issued it. */
static __always_inline void offer_to_sessions(struct request_end *end)
{
	bool one = end->op == TOBS_BLOCK_READ;

	end->first_slot = end->slot = one ? end->start.slot : 0;
	end->end_slot = one ? end->start.slot + 1 : used_slots();
	if (end->bio)
		count_all_bios(end, MAX_BIOS * (end->end_slot - end->first_slot));
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
	if (!request->__data_len) { /* a flush: what is kept is of an earlier use of the structure */
		forget_request(key);
		return 0;
	}
	end.start = *start;
	end.bio = BPF_CORE_READ(request, bio);
	end.left = bytes;
	end.ns = over ? bpf_ktime_get_ns() - start->ns : 0;
	end.op = (request->cmd_flags & REQ_OP_MASK) == REQ_OP_READ ? TOBS_BLOCK_READ :
								     TOBS_BLOCK_WRITE;
	if (over)
		bpf_map_delete_elem(&requests, &key);
	else
		start->use = 0; /* what is left may begin with another */
	offer_to_sessions(&end);
	return 0;
}
