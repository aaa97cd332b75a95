/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Which bytes of a file an access is the first to touch in its epoch. While a file is accessed from its
 * beginning on without a gap, one number says which ones were; from the first gap on, a bit says
 * of each block behind it whether some of it was, and another whether all of it.
 */
#ifndef TRAINOBS_UNIQUE_H
#define TRAINOBS_UNIQUE_H

#include "maps.h"

#define BLOCK_SHIFT 12
#define BLOCK (1ULL << BLOCK_SHIFT)
#define CHUNK_SHIFT 6	    /* log2 of the blocks in a chunk: one word of bits */
#define CHUNKS_AT_ONCE 64   /* that kernels without bpf_loop mark in a call: 16 MiB */
#define MAX_CHUNKS 8192	    /* in a call, which moves 2 GiB at most */
#define FROZEN (1ULL << 63) /* of tobs_file::front */
#define NOWHERE (~0ULL)	    /* no position */

enum event {
	EVENT_CALL,
	EVENT_OPEN,
	EVENT_MMAP,
};

enum order {
	ORDER_UNKNOWN,
	ORDER_FIRST,
	ORDER_CONSECUTIVE,
	ORDER_FORWARD,
	ORDER_BACKWARD,
};

/* One call on a file, as it is counted. */
struct access {
	struct tobs_file_key key;
	struct tobs_total_key total;
	u64 file;      /* address of the open file */
	u64 size;      /* of the file */
	u64 begin;     /* position, or NOWHERE */
	u64 run_begin; /* of the consecutive accesses that this one ends */
	u64 ns;
	long result;
	enum event event;
	enum order order;
	u32 mode;	 /* of the open file */
	u32 unused;	 /* no padding: Linux before 6.3 passes no byte on that nobody wrote */
	u64 least, most; /* bytes that it is the first to access in this epoch, ... */
	u64 untold;	 /* ... or that nobody knows of whether it is */
};

_Static_assert(sizeof(struct access) ==
		       sizeof(struct tobs_file_key) + sizeof(struct tobs_total_key) + 11 * 8,
	       "no padding");

struct chunk_key {
	struct tobs_file_key file;
	u64 number;
};

/* Of each block, whether some of it was accessed, and whether all of it. */
struct chunk {
	u64 touched;
	u64 full;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct chunk_key);
	__type(value, struct chunk);
} chunks SEC(".maps");

/* Of zeros: on the stack it would be too much for kernels that count each frame in steps of 32 bytes. */
struct chunk empty_chunk;

static __always_inline u64 bits_set(u64 word)
{
	word -= (word >> 1) & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + ((word >> 2) & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return (word * 0x0101010101010101ULL) >> 56;
}

/* Bits [from, to) of the word of a chunk, both counted from the beginning of the file. */
static __always_inline u64 bits_between(u64 from, u64 to, u64 chunk)
{
	u64 first = chunk << CHUNK_SHIFT, end = first + (1 << CHUNK_SHIFT);

	if (from < first)
		from = first;
	if (to > end)
		to = end;
	if (from >= to)
		return 0;
	return (~0ULL >> (64 - (to - from))) << (from - first);
}

/* What marks the blocks of an access: those that it touches, and those that it covers. */
struct marking {
	struct chunk_key key;
	u64 touched_from, touched_to;
	u64 full_from, full_to;
	u64 front; /* what lies before it is known without blocks, ... */
	u64 size;  /* ... and there is nothing behind it */
	u64 least, most;
};

/* Bytes in the blocks of some bits. */
static __always_inline u64 bytes_in(u64 bits, u64 number, struct marking *marking)
{
	u64 first = number << CHUNK_SHIFT;
	u64 cut = (marking->front >> BLOCK_SHIFT) - first,
	    last = (marking->size >> BLOCK_SHIFT) - first;
	u64 bytes = bits_set(bits) << BLOCK_SHIFT;

	if (cut < 64 && bits & (1ULL << cut))
		bytes -= marking->front & (BLOCK - 1);
	if (last < 64 && bits & (1ULL << last))
		bytes -= BLOCK - (marking->size & (BLOCK - 1));
	return bytes;
}

/* Mark the blocks of a chunk; false if there is no room for it. Global, as count_bios. */
__noinline int mark_blocks_of(struct marking *marking)
{
	struct chunk *chunk;
	struct chunk_key key;
	u64 touched, full;

	if (!marking)
		return 0;
	key = marking->key;
	touched = bits_between(marking->touched_from, marking->touched_to, key.number);
	full = bits_between(marking->full_from, marking->full_to, key.number);
	chunk = bpf_map_lookup_elem(&chunks, &key);
	if (!chunk) {
		bpf_map_update_elem(&chunks, &key, &empty_chunk, BPF_NOEXIST);
		chunk = bpf_map_lookup_elem(&chunks, &key);
		if (!chunk)
			return 0;
	}
	touched &= ~__sync_fetch_and_or(&chunk->touched, touched);
	full &= ~__sync_fetch_and_or(&chunk->full, full);
	marking->most += bytes_in(touched, key.number, marking);
	marking->least += bytes_in(full, key.number, marking);
	return 1;
}

static __always_inline u64 chunks_end(struct marking *marking)
{
	return ((marking->touched_to - 1) >> CHUNK_SHIFT) + 1;
}

/* The next one; 1: there is no more to do. */
static long mark_chunk(u32 index, struct marking *marking)
{
	if (marking->key.number >= chunks_end(marking) || !mark_blocks_of(marking))
		return 1;
	marking->key.number++;
	return 0;
}

/* For kernels without bpf_loop: as count_bios. */
__noinline int mark_chunks(struct marking *marking)
{
	if (HAS_HELPER(loop))
		return 1;
	for (u64 i = 0; marking && i < CHUNKS_AT_ONCE; i++)
		if (mark_chunk(i, marking))
			return 1;
	return !marking;
}

/* The first that access some bytes behind those at the front of the file. */
static __always_inline void mark_blocks(struct access *access, u64 front)
{
	u64 begin = access->begin, end = begin + access->result, run = access->run_begin;
	struct marking marking = { .key.file = access->key, .front = front, .size = access->size };

	if (begin < front)
		begin = front;
	if (run < front)
		run = front;
	if (begin >= end)
		return;
	if (access->key.op == TOBS_FILE_WRITE) /* the next write may go on in its last block */
		marking.size = NOWHERE;
	else if (marking.size < end) /* it grows */
		marking.size = end;
	marking.touched_from = begin >> BLOCK_SHIFT;
	marking.touched_to = (end + BLOCK - 1) >> BLOCK_SHIFT;
	marking.full_from = (run == front ? run : run + BLOCK - 1) >> BLOCK_SHIFT;
	if (marking.full_from < marking.touched_from)
		marking.full_from = marking.touched_from;
	marking.full_to = end == marking.size ? marking.touched_to : end >> BLOCK_SHIFT;
	marking.key.number = marking.touched_from >> CHUNK_SHIFT;
	if (HAS_HELPER(loop))
		bpf_loop(MAX_CHUNKS, mark_chunk, &marking, 0);
	else
		mark_chunks(&marking);
	access->least = marking.least;
	access->most = marking.most;
	if (marking.key.number < chunks_end(&marking))
		access->untold = access->result;
}

/* What a file has grown by since the access before may lie in a block that was counted as it was. */
static __always_inline u64 grown_in_block(struct access *access, struct tobs_file *file)
{
	u64 before = file->size, now = access->size;

	if (access->key.op == TOBS_FILE_WRITE || now <= before)
		return 0;
	return now - before < BLOCK ? now - before : BLOCK;
}

static __always_inline void tell_unique(struct access *access, struct tobs_file *file)
{
	u64 begin = access->begin, end = begin + access->result;
	u64 front = *(volatile u64 *)&file->front, found, grown = 0;

	if (begin == NOWHERE) {
		access->untold = access->result;
		return;
	}
	if (front & FROZEN) {
		grown = grown_in_block(access, file);
	} else {
		if (end <= front)
			return;
		if (begin <= front) {
			found = __sync_val_compare_and_swap(&file->front, front, end);
			if (found == front) {
				access->least = access->most = end - front;
				return;
			}
		}
		front = __sync_fetch_and_or(&file->front, FROZEN);
	}
	mark_blocks(access, front & ~FROZEN);
	access->most += grown;
}

#endif
