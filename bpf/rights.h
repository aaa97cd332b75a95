/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Whose tasks a session may follow: those that its client, the process that has connected to the
 * service, might look into. So it is asked what the kernel asks before it lets one process look into
 * another (__ptrace_may_access, cap_ptrace_access_check), except that CAP_SYS_PTRACE excuses from
 * nothing.
 */
#ifndef TRAINOBS_RIGHTS_H
#define TRAINOBS_RIGHTS_H

#include "maps.h"

#define MAX_NAME_SPACES 33 /* create_user_ns() makes no deeper ones */

static __always_inline u64 permitted_of(struct cred *cred)
{
	u64 mask = 0;

	/* Two words before v6.3, one since (f122a08b197d "capability: just use a 'u64'"). */
	bpf_probe_read_kernel(&mask, sizeof(mask),
			      (void *)cred + bpf_core_field_offset(struct cred, cap_permitted));
	return mask;
}

/* Note the rights that a client had when it connected; the reader has its connection open. */
static __always_inline void take_client(struct tobs_settings *set, u32 connection)
{
	struct file *file = file_of_fd(connection);
	struct socket *socket = READ(struct file, file, private_data);
	struct cred *cred = READ(struct socket, socket, sk, sk_peer_cred);

	if (!cred) { /* no socket that somebody connected: nobody has its rights */
		set->uid = set->gid = (u32)-1;
		return;
	}
	set->uid = FIELD(cred, euid.val);
	set->gid = FIELD(cred, egid.val);
	set->permitted = permitted_of(cred);
	set->user_ns = (u64)FIELD(cred, user_ns);
}

/* Real, effective and saved ones: a program with rights of its own has others. */
static __always_inline bool has_ids_of(struct cred *cred, struct tobs_settings *set)
{
	u32 uid = set->uid, gid = set->gid;

	return FIELD(cred, uid.val) == uid && FIELD(cred, euid.val) == uid &&
	       FIELD(cred, suid.val) == uid && FIELD(cred, gid.val) == gid &&
	       FIELD(cred, egid.val) == gid && FIELD(cred, sgid.val) == gid;
}

/* Whether a task may do nothing that the client may not. In a user name space that the client has
 * made, or that lies in such a one, it may do anything itself. */
static __always_inline bool has_no_more(struct cred *cred, struct tobs_settings *set)
{
	struct user_namespace *space = FIELD(cred, user_ns);

	if ((u64)space == set->user_ns)
		return !(permitted_of(cred) & ~set->permitted);
	for (u64 i = 0; i < MAX_NAME_SPACES && space; i++) {
		struct user_namespace *parent = FIELD(space, parent);

		if ((u64)parent == set->user_ns)
			return FIELD(space, owner.val) == set->uid;
		space = parent;
	}
	return false;
}

/* Whether others of the same user may see what a task does: not of a program that they cannot read,
 * nor of one that asked for it (PR_SET_DUMPABLE). */
static __always_inline bool is_dumpable(struct task_struct *task)
{
	struct mm_struct *mm = READ(struct task_struct, task, mm);

	if (!mm)
		return false; /* it is ending, and was followed before, or never */
	if (bpf_core_field_exists(task->exec_state))
		return READ(struct task_struct, task, exec_state, dumpable) == TASK_DUMPABLE_OWNER;
	if (bpf_core_field_exists(((struct mm_struct___6_18 *)mm)->flags.__mm_flags))
		return (READ(struct mm_struct___6_18, mm, flags.__mm_flags[0]) &
			MMF_DUMPABLE_MASK) == SUID_DUMP_USER;
	return (READ(struct mm_struct, mm, flags) & MMF_DUMPABLE_MASK) == SUID_DUMP_USER;
}

/* Global, as class_by_path is. */
__noinline u32 has_rights_of_client(u32 slot, u64 address)
{
	struct cred *cred = UNTRUSTED(struct cred, (void *)address);
	struct tobs_settings *set = settings_of(slot);

	return set && has_ids_of(cred, set) && has_no_more(cred, set);
}

static __always_inline bool may_follow(struct task_struct *task, u32 slot)
{
	struct tobs_settings *set = settings_of(slot);

	if (!set)
		return false;
	return !set->guarded || (has_rights_of_client(slot, (u64)BPF_CORE_READ(task, real_cred)) &&
				 is_dumpable(task));
}

#endif
