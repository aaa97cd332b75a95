/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Who is followed: the process that registers, its threads, and all its descendants from birth.
 * Storage vanishes with its task, so nobody has to clean up.
 */
#include "file_class.h"

#define MAX_ANCESTORS 8 /* main, fork server, worker, and some to spare */

struct name {
	u64 words[2];
};

static __always_inline struct name name_of(const char *comm)
{
	struct name name = {};

	bpf_probe_read_kernel_str(name.words, sizeof(name.words), comm);
	return name;
}

/* torch/utils/data/_utils/worker.py names its process so (torch 2.5). */
static __always_inline bool is_worker_name(struct name name)
{
	return name.words[0] == 0x5f617461645f7470ULL /* "pt_data_" */ &&
	       name.words[1] == 0x000072656b726f77ULL /* "worker" */;
}

/* src/trainobs/probes/secede.py */
static __always_inline bool is_secede_name(struct name name)
{
	return name.words[0] == 0x6365735f73626f74ULL /* "tobs_sec" */ &&
	       name.words[1] == 0x0000000000656465ULL /* "ede" */;
}

static __always_inline u32 child_role(u32 parent_role, bool is_thread)
{
	if (is_thread)
		return parent_role == TOBS_MAIN ? TOBS_THREAD : parent_role;
	return parent_role == TOBS_WORKER ? TOBS_WORKER : TOBS_CHILD;
}

static __always_inline void follow(struct task_struct *task, u32 role)
{
	struct task_state *state =
		bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (state)
		state->role = role;
	else
		COUNT_LOSS(tasks);
}

/* Not sched_process_fork, which passes over the threads that io_uring starts. */
SEC("tp_btf/task_newtask")
int BPF_PROG(tobs_fork, struct task_struct *child)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct task_state *state = state_of(parent);

	if (state)
		follow(child, child_role(state->role, child->tgid == parent->tgid));
	return 0;
}

/* The name is given by the main thread of a session: ours means others by it, another's means us. */
static __always_inline void let_go(struct task_struct *task)
{
	struct task_state *namer = current_state();

	if (!namer || namer->role != TOBS_MAIN)
		bpf_task_storage_delete(&tasks, task);
}

SEC("tp_btf/task_rename")
int BPF_PROG(tobs_rename, struct task_struct *task, const char *comm)
{
	struct task_state *state = state_of(task);
	struct name name;

	if (!state)
		return 0;
	name = name_of(comm);
	if (is_secede_name(name))
		let_go(task);
	else if (task->pid == task->tgid && is_worker_name(name))
		state->role = TOBS_WORKER;
	return 0;
}

static __always_inline bool descends_from(struct task_struct *task, int tgid)
{
	for (int i = 0; i < MAX_ANCESTORS; i++) {
		task = BPF_CORE_READ(task, real_parent);
		if (!task)
			return false;
		if (BPF_CORE_READ(task, tgid) == tgid)
			return true;
	}
	return false;
}

/*
 * Iterators run in the reader's own context: reading one registers the reader, so no process id
 * has to be translated between name spaces.
 */
SEC("iter/task")
int tobs_adopt(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task, *reader = bpf_get_current_task_btf();

	if (!task)
		return 0;
	if (task->tgid == reader->tgid)
		follow(task, task->pid == reader->pid ? TOBS_MAIN : TOBS_THREAD);
	else if (descends_from(task, reader->tgid))
		follow(task, is_worker_name(name_of(task->group_leader->comm)) ? TOBS_WORKER :
										 TOBS_CHILD);
	return 0;
}

/* The observer's own thread leaves: its writes are not the training's. */
SEC("iter/task")
int tobs_leave(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;

	if (task && task->pid == bpf_get_current_task_btf()->pid)
		bpf_task_storage_delete(&tasks, task);
	return 0;
}

/* Give a class to the directory open at tobs_control::root_fd of the reader. By descriptor, since
 * a device number from stat(2) is not the kernel's own on btrfs. */
SEC("iter/task")
int tobs_root(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct tobs_control *set = settings();
	struct inode_key key;
	struct file *file;
	u32 class;

	if (!task || !set || task->pid != bpf_get_current_task_btf()->pid)
		return 0;
	file = file_of_fd(BY_HELPER, set->root_fd);
	if (!file)
		return 0;
	key = key_of(BPF_CORE_READ(file, f_inode));
	class = set->root_class;
	if (bpf_map_update_elem(&roots, &key, &class, BPF_ANY))
		COUNT_LOSS(classes);
	return 0;
}
