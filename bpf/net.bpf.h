/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Sockets: bytes that really left or arrived, whatever system call moved them. */
#include "file_class.h"

SEC("tp_btf/sock_send_length")
int BPF_PROG(tobs_send, struct sock *sock, int result, int flags)
{
	struct task_state *task = current_state();

	if (task && result > 0)
		add(account_of(task), TOBS_SEND, socket_class(sock->__sk_common.skc_family), 1,
		    result, 0, 0);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(tobs_receive, struct sock *sock, int result, int flags)
{
	struct task_state *task = current_state();

	if (task && result > 0 && !(flags & MSG_PEEK))
		add(account_of(task), TOBS_RECEIVE, socket_class(sock->__sk_common.skc_family), 1,
		    result, 0, 0);
	return 0;
}
