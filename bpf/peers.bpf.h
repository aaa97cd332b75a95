/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What is sent to and received from each peer, by epoch and phase, as in files.bpf.h. No map is LRU, so
 * that no byte is lost: whoever finds no room is one of the others, who are counted together.
 */
#ifndef TRAINOBS_PEERS_H
#define TRAINOBS_PEERS_H

#include "file_class.h"

struct peer_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct tobs_peer_key);
	__type(value, struct tobs_peer);
};

struct peer_map peers SEC(".maps");
struct peer_map unlisted_peers SEC(".maps");

/* In network order, on machines that are little-endian: */
#define MAPPED 0xffff0000 /* third word of an address of IPv4, as IPv6 maps it */
#define LOOPBACK 127	  /* first byte of one that does not leave the machine */

/* Both ends of a socket, as addresses of IPv6. */
struct ends {
	u32 own[4];
	u32 peer[4];
};

static __always_inline void read_ends(struct ends *ends, struct sock *sock)
{
	struct sock_common *common = &sock->__sk_common;

	if (common->skc_family == AF_INET) {
		ends->own[2] = ends->peer[2] = MAPPED;
		ends->own[3] = common->skc_rcv_saddr;
		ends->peer[3] = common->skc_daddr;
	} else if (bpf_core_field_exists(common->skc_v6_daddr)) {
		for (int i = 0; i < 4; i++) {
			ends->own[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			ends->peer[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
		}
	}
}

/* Whether the peer is a socket of this machine. */
static __always_inline bool is_here(struct ends *ends)
{
	u32 differs = 0;

	if (ends->peer[2] == MAPPED && !ends->peer[0] && !ends->peer[1] &&
	    (ends->peer[3] & 0xff) == LOOPBACK)
		return true;
	for (int i = 0; i < 4; i++)
		differs |= ends->own[i] ^ ends->peer[i];
	return !differs;
}

static __always_inline void name_peer(struct tobs_peer_key *key, struct sock *sock)
{
	struct ends ends = {};
	u32 *peer = ends.peer;

	read_ends(&ends, sock);
	if (!peer[3] && !peer[0] && !peer[1] && (!peer[2] || peer[2] == MAPPED)) {
		key->address[2] = MAPPED; /* 0.0.0.0: not connected, each message has its own */
		return;
	}
	for (int i = 0; i < 4; i++)
		key->address[i] = peer[i];
	if (is_here(&ends)) {
		key->own_port = sock->__sk_common.skc_num;
		key->port = __builtin_bswap16(sock->__sk_common.skc_dport);
	}
}

static __always_inline struct tobs_peer *peer_for(struct tobs_peer_key *key)
{
	struct tobs_peer empty = {}, *peer = bpf_map_lookup_elem(&peers, key);

	if (peer)
		return peer;
	bpf_map_update_elem(&peers, key, &empty, BPF_NOEXIST);
	peer = bpf_map_lookup_elem(&peers, key);
	if (peer)
		return peer;
	for (int i = 0; i < 4; i++)
		key->address[i] = 0;
	key->own_port = key->port = 0;
	bpf_map_update_elem(&unlisted_peers, key, &empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&unlisted_peers, key);
}

/* Some bytes have left by an internet socket, or arrived. */
static __always_inline void count_peer(struct task_state *task, struct sock *sock, u32 op,
				       u64 bytes)
{
	struct tobs_clock *clock = clock_of(task->slot);
	struct tobs_peer_key key = {
		.epoch = clock ? *(volatile u64 *)&clock->epoch : 0,
		.phase = clock ? phase_of(clock) : TOBS_PHASE_OTHER,
		.role = task->role,
	};
	struct tobs_peer *peer;

	if (key.phase > TOBS_PHASE_LOGGING)
		key.phase = TOBS_PHASE_OTHER;
	name_peer(&key, sock);
	peer = peer_for(&key);
	if (!peer)
		return;
	bump(op == TOBS_SEND ? &peer->sent_count : &peer->received_count, 1);
	bump(op == TOBS_SEND ? &peer->sent_bytes : &peer->received_bytes, bytes);
}

#endif
