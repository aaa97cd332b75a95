/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Sockets: bytes that really left or arrived, whatever system call moved them. */
#include "batches.h"
#include "file_class.h"
#include "peers.bpf.h"

/* Whether a socket is the kernel's own: a network file system sends some of its requests as the task
 * that reads, and takes what comes in threads of its own. */
static __always_inline bool is_of_kernel(struct sock *sock)
{
	return bpf_core_field_exists(sock->sk_kern_sock) &&
	       BPF_CORE_READ_BITFIELD(sock, sk_kern_sock);
}

static __always_inline void count_message(struct task_state *task, u32 op, struct sock *sock,
					  long result)
{
	u32 class;

	if (result <= 0 || is_of_kernel(sock))
		return;
	class = socket_class(sock->__sk_common.skc_family);
	add(account_of(task), op, class, 1, result, 0, 0);
	if (COUNTS_FILES && class == TOBS_SOCKET)
		count_peer(task, sock, op, result);
	if (op == TOBS_RECEIVE && class == TOBS_SOCKET && makes_batch(task))
		task->batch.received_bytes += result;
}

PREEMPTIBLE_PROG("tp_btf/sock_send_length", tobs_send, struct sock *sock, int result)
{
	struct task_state *task = task_of_event(SEEN_SEND, again);

	if (task)
		KEEPING_CPU(count_message(task, TOBS_SEND, sock, result));
	return 0;
}

PREEMPTIBLE_PROG("tp_btf/sock_recv_length", tobs_receive, struct sock *sock, int result, int flags)
{
	struct task_state *task = flags & MSG_PEEK ? NULL : task_of_event(SEEN_RECEIVE, again);

	if (task)
		KEEPING_CPU(count_message(task, TOBS_RECEIVE, sock, result));
	return 0;
}

/*
 * Before v6.3 there are no such tracepoints, but the functions that all messages of internet sockets
 * go through, those of sendfile too (sendpage, up to v6.4).
 */
static __always_inline int count_sent(struct sock *sock, long result)
{
	struct task_state *task = current_state();

	if (task)
		count_message(task, TOBS_SEND, sock, result);
	return 0;
}

static __always_inline int count_received(struct sock *sock, long result, int flags)
{
	struct task_state *task = flags & MSG_PEEK ? NULL : current_state();

	if (task)
		count_message(task, TOBS_RECEIVE, sock, result);
	return 0;
}

SEC("fexit/inet_sendmsg")
int BPF_PROG(tobs_send_4, struct socket *socket, void *message, size_t size, int result)
{
	return count_sent(socket->sk, result);
}

SEC("fexit/inet6_sendmsg")
int BPF_PROG(tobs_send_6, struct socket *socket, void *message, size_t size, int result)
{
	return count_sent(socket->sk, result);
}

SEC("fexit/inet_sendpage")
int BPF_PROG(tobs_send_page, struct socket *socket, void *page, int offset, size_t size, int flags,
	     ssize_t result)
{
	return count_sent(socket->sk, result);
}

SEC("fexit/inet_recvmsg")
int BPF_PROG(tobs_receive_4, struct socket *socket, void *message, size_t size, int flags,
	     int result)
{
	return count_received(socket->sk, result, flags);
}

SEC("fexit/inet6_recvmsg")
int BPF_PROG(tobs_receive_6, struct socket *socket, void *message, size_t size, int flags,
	     int result)
{
	return count_received(socket->sk, result, flags);
}
