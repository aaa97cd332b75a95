/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Block requests, with the class of the file whose pages they carry. */
#include "file_class.h"

struct request_start {
	u64 ns;
	u32 bytes;
	u8 op;
	u8 class;
	u8 role;
	u8 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct request_start);
} requests SEC(".maps");

/* Whose request it is; false: nobody's that we follow. */
static __always_inline bool attribute(struct request *request, struct request_start *start)
{
	struct task_state *task = current_state();
	struct inode *inode = request_inode(request);

	start->class = inode ? known_class(inode) : TOBS_OTHER;
	if (task) {
		start->role = task->role;
		/* Direct I/O carries anonymous pages, overlayfs those of another inode; the inode of
		 * metadata is the block device. */
		if (start->class == TOBS_OTHER && task->call && (!inode || is_regular(inode)))
			start->class = task->class;
		return true;
	}
	start->role = TOBS_KERNEL;
	return start->class == TOBS_DATA || start->class == TOBS_CHECKPOINT;
}

SEC("tp_btf/block_io_start")
int BPF_PROG(tobs_blk_start, struct request *request)
{
	u32 op = request->cmd_flags & REQ_OP_MASK;
	struct request_start start = {};
	u64 key = (u64)request;

	if ((op != REQ_OP_READ && op != REQ_OP_WRITE) || !attribute(request, &start))
		return 0;
	start.op = op == REQ_OP_READ ? TOBS_BLOCK_READ : TOBS_BLOCK_WRITE;
	start.bytes = request->__data_len;
	start.ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&requests, &key, &start, BPF_ANY))
		COUNT_LOSS(requests);
	return 0;
}

SEC("tp_btf/block_io_done")
int BPF_PROG(tobs_blk_done, struct request *request)
{
	u64 key = (u64)request, ns;
	struct request_start *start = bpf_map_lookup_elem(&requests, &key);

	if (!start)
		return 0;
	ns = bpf_ktime_get_ns() - start->ns;
	add(start->op, start->class, start->role, 1, start->bytes, ns, 0);
	observe(start->op, start->class, start->role, ns);
	if (start->op == TOBS_BLOCK_READ)
		observe_in_step(ns);
	bpf_map_delete_elem(&requests, &key);
	return 0;
}
