/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Who is followed: the process that registers, its threads, and all its descendants from birth.
 * Storage vanishes with its task, so nobody has to clean up after one; what a session that ends
 * still follows is let go of by tobs_release.
 */
#include "askers.h"
#include "names.h"
#include "rights.h"

#define MAX_ANCESTORS 1024
#define FEWER_ANCESTORS 8 /* without bpf_loop: main, fork server, worker, and some to spare */
#define NO_PROCESS ((u32) - 1)

static __always_inline u32 child_role(u32 parent_role, bool is_thread)
{
	if (is_thread)
		return parent_role == TOBS_MAIN ? TOBS_THREAD : parent_role;
	return parent_role == TOBS_WORKER ? TOBS_WORKER : TOBS_CHILD;
}

static __always_inline void follow(struct task_struct *task, u32 slot, u32 role)
{
	struct task_state *state =
		bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (state) {
		state->slot = slot;
		state->role = role;
		state->inode = 0; /* another session may give its file another class */
	} else {
		COUNT_LOSS(slot, tasks);
	}
}

static __always_inline void follow_child(struct task_state *parent, struct task_struct *child,
					 bool is_thread)
{
	follow(child, parent->slot, child_role(parent->role, is_thread));
	if (!is_open(parent->slot)) /* it has ended meanwhile, and may not come by again */
		bpf_task_storage_delete(&tasks, child);
}

/* Not sched_process_fork, which passes over the threads that io_uring starts. */
PREEMPTIBLE_PROG("tp_btf/task_newtask", tobs_fork, struct task_struct *child)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct task_state *state = state_of(parent);

	if (state && is_open(state->slot))
		KEEPING_CPU(follow_child(state, child, child->tgid == parent->tgid));
	return 0;
}

static __always_inline void follow_program(struct task_struct *task, u32 slot,
					   struct linux_binprm *program)
{
	if (BPF_CORE_READ_BITFIELD(program, secureexec) || !may_follow(task, slot))
		bpf_task_storage_delete(&tasks, task);
}

/* A program that has more rights than the client whose session it is, such as sudo, is not followed
 * any further. The rights of a task grow in no other way. */
PREEMPTIBLE_PROG("tp_btf/sched_process_exec", tobs_exec, struct task_struct *task, int old_pid,
		 struct linux_binprm *program)
{
	struct task_state *state = state_of(task);
	struct tobs_settings *set = state ? settings_of(state->slot) : NULL;

	if (set && set->guarded)
		KEEPING_CPU(follow_program(task, state->slot, program));
	return 0;
}

/* The name is given by the main thread of a session: ours means others by it, another's means us. */
static __always_inline void let_go(struct task_struct *task)
{
	struct task_state *namer = current_state();

	if (!namer || namer->role != TOBS_MAIN)
		bpf_task_storage_delete(&tasks, task);
}

static __always_inline void take_name(struct task_state *state, struct task_struct *task,
				      struct name name)
{
	if (is_detach_name(name))
		let_go(task);
	else if (task->pid == task->tgid && is_worker_name(name))
		state->role = TOBS_WORKER;
}

PREEMPTIBLE_PROG("tp_btf/task_rename", tobs_rename, struct task_struct *task, const char *comm)
{
	struct task_state *state = state_of(task);

	if (state)
		KEEPING_CPU(take_name(state, task, name_of(comm)));
	return 0;
}

/* What the reader calls a task, which may be in a name space below its own; 0: it does not see it.
 * Global, as class_by_path is. */
__noinline u32 pid_for_reader(u64 address)
{
	struct pid *reader = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid);
	struct pid *pid = (struct pid *)address;
	u32 level = READ(struct pid, reader, level);
	struct upid *name = name_at(pid, level), *own = name_at(reader, level);

	if (!pid || READ(struct pid, pid, level) < level ||
	    READ(struct upid, name, ns) != READ(struct upid, own, ns))
		return 0;
	return READ(struct upid, name, nr);
}

/* Whether a task is one of the process that a call is about. */
static __always_inline bool is_meant(struct task_struct *task, struct tobs_control *call)
{
	struct task_struct *leader = READ(struct task_struct, task, group_leader);
	struct pid *pid = BPF_CORE_READ(leader, thread_pid);

	return call->tgid && pid_for_reader((u64)pid) == call->tgid;
}

/* The process of the session that follows a task already, other than the one of a call; NO_PROCESS: none. */
static __always_inline u32 other_process(struct task_struct *task, u32 slot)
{
	struct task_state *state = state_of(task);
	struct tobs_settings *set = state && state->slot != slot ? settings_of(state->slot) : NULL;

	return set && set->open ? set->tgid : NO_PROCESS;
}

/* A way up from a task to the process that a call is about. */
struct ascent {
	struct task_struct *task; /* NULL: it does not lead there */
	struct tobs_control *call;
	u64 other; /* the process of a session that may be nearer */
};

static long ascend(u32 index, struct ascent *ascent)
{
	struct task_struct *task = ascent->task;
	struct task_struct *parent = READ(struct task_struct, task, real_parent);

	if (READ(struct task_struct, task, tgid) == ascent->other || parent == task)
		parent = NULL;
	ascent->task = parent;
	return !parent || is_meant(parent, ascent->call);
}

/* Whether a task stems from the process that a call is about, with no other session nearer. */
static __always_inline bool descends(struct task_struct *task, struct tobs_control *call)
{
	struct ascent ascent = { task, call, other_process(task, call->slot) };

	if (HAS_HELPER(loop)) {
		bpf_loop(MAX_ANCESTORS, ascend, &ascent, 0);
		return is_meant(ascent.task, call);
	}
	for (u64 i = 0; i < FEWER_ANCESTORS; i++)
		if (ascend(i, &ascent))
			break;
	return is_meant(ascent.task, call);
}

/* The process of a call: tobs_control::tid is its training thread. */
static __always_inline u32 role_in_process(struct task_struct *task, struct tobs_control *call,
					   struct tobs_settings *set)
{
	if (own_tid(task) != call->tid)
		return TOBS_THREAD;
	set->tgid = task->tgid;
	call->found++;
	return TOBS_MAIN;
}

/* Iterators run when a descriptor is read. What they are to do stands in tobs_control. */
SEC("iter/task")
int tobs_adopt(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct tobs_control *call = arguments();
	struct tobs_settings *set = call ? settings_of(call->slot) : NULL;
	u32 role;

	if (!task || !set)
		return 0;
	if (call->limits_hidden > 1)
		keep_readers();
	if (set->guarded && !set->user_ns)
		take_client(set, call->client_fd);
	if (!may_follow(task, call->slot))
		return 0;
	if (is_meant(task, call))
		role = role_in_process(task, call, set);
	else if (descends(task, call))
		role = is_worker_name(name_of(task->group_leader->comm)) ? TOBS_WORKER : TOBS_CHILD;
	else
		return 0;
	follow(task, call->slot, role);
	if (!may_follow(task, call->slot)) /* it runs another program since it was asked */
		bpf_task_storage_delete(&tasks, task);
	return 0;
}

/* The observer's own thread leaves: its writes are not the training's. */
SEC("iter/task")
int tobs_leave(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct tobs_control *call = arguments();
	struct task_state *state = task ? state_of(task) : NULL;

	if (!call || !state || state->slot != call->slot || own_tid(task) != call->tid ||
	    !is_meant(task, call))
		return 0;
	bpf_task_storage_delete(&tasks, task);
	call->found++;
	return 0;
}

/* A session is over: let go of all that it follows. */
SEC("iter/task")
int tobs_release(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct tobs_control *call = arguments();
	struct task_state *state = task ? state_of(task) : NULL;

	if (!call || !state || state->slot != call->slot)
		return 0;
	bpf_task_storage_delete(&tasks, task);
	call->found++;
	return 0;
}

/* Give a class to the directory open at tobs_control::root_fd of the reader. By descriptor, since
 * a device number from stat(2) is not the kernel's own on btrfs. What it iterates over does not matter,
 * and there are fewer maps than tasks: it works at the first. */
SEC("iter/bpf_map")
int tobs_root(void *context)
{
	struct tobs_control *call = arguments();
	struct tobs_settings *set;
	struct inode_key key;
	struct inode *inode;
	struct file *file;
	u32 slot, class;
	void *roots;

	if (!call || call->found++)
		return 0;
	file = file_of_fd(call->root_fd);
	if (!file)
		return 0;
	inode = BPF_CORE_READ(file, f_inode);
	key = key_of(inode);
	slot = call->slot;
	class = call->root_class;
	set = settings_of(slot);
	if (set && class == TOBS_DATA && is_overlaid(inode))
		set->overlaid = 1;
	roots = bpf_map_lookup_elem(&session_roots, &slot);
	if (roots && bpf_map_update_elem(roots, &key, &class, BPF_ANY))
		COUNT_LOSS(slot, classes);
	return 0;
}
