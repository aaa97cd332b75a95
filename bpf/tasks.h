/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Who is followed, and in which step: the maps that programs of a user's share with ours, and how
 * both read them. support.bpf.c joins it to an object that knows none of it.
 */
#ifndef TRAINOBS_TASKS_H
#define TRAINOBS_TASKS_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

#include "task_state.h"

/*
 * What belongs to one session lies in maps of its own, in the slot of that session. So nobody can be
 * given what is another's, and all of a session is gone when its maps are.
 */
struct clock_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct tobs_clock));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TOBS_SLOTS);
	__type(key, u32);
	__array(values, struct clock_map);
} session_clocks SEC(".maps");

#define CALL_DIRECT 1	  /* the file is open with O_DIRECT */
#define CALL_REGULAR 2	  /* the file is a regular one */
#define CALL_READ_AHEAD 4 /* the call started read-ahead and waits for it */
#define OFF_STORAGE 8	  /* the task waits for storage, if it sleeps */
#define OFF_AWAIT 16	  /* the task sleeps for another thread, ... */
#define OFF_GIL 32	  /* ... or until one lets go of the interpreter's lock; ... */
#define OFF_STOPPED 48	  /* ... both: until a signal, or who traces it, lets it go on */
#define OFF_GLOO 64	  /* a thread of gloo woke it */
#define CALL_COPIES 128	  /* the call has a second file, which it reads from */

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

static __always_inline struct task_state *state_of(struct task_struct *task)
{
	return bpf_task_storage_get(&tasks, task, NULL, 0);
}

static __always_inline struct task_state *current_state(void)
{
	return state_of(bpf_get_current_task_btf());
}

#define NO_CALL ((u32) - 1)

/* The op of the system call in flight, or NO_CALL. */
static __always_inline u32 call_of(struct task_state *task)
{
	return (u32)task->call - 1;
}

static __always_inline bool in_call(struct task_state *task, u32 op)
{
	return call_of(task) == op;
}

static __always_inline u32 class_of_call(struct task_state *task)
{
	return call_of(task) == NO_CALL ? TOBS_OTHER : task->class;
}

/* Events whose first program says in task_state::seen that it was there, unless the second one says in
 * task_state::handed that it calls it: preemption.h. Where it does no harm to count twice, neither is
 * needed. */
enum seen {
	SEEN_ENTER = 1,
	SEEN_URING = 2,
	SEEN_CACHE_ADD = 4,
	SEEN_FAULT = 8,
	SEEN_SEND = 16,
	SEEN_RECEIVE = 32,
};

/* The state of the current task, if this is the program that counts an event of it. */
static __always_inline struct task_state *task_of_event(enum seen event, bool again)
{
	struct task_state *task = current_state();

#ifdef TOBS_PREEMPTIBLE
	if (!task)
		return NULL;
	if (!again) {
		if (task->handed & event)
			task->handed &= ~event;
		else
			task->seen |= event;
	} else if (task->seen & event) {
		task->seen &= ~event;
		return NULL;
	} else {
		task->handed |= event;
	}
#endif
	return task;
}

/* What a session has under a key; NULL where there is no such session. */
static __always_inline void *in_session(void *maps, u32 slot, const void *key)
{
	void *map = bpf_map_lookup_elem(maps, &slot);

	return map ? bpf_map_lookup_elem(map, key) : NULL;
}

static __always_inline struct tobs_clock *clock_of(u32 slot)
{
	u32 zero = 0;

	return in_session(&session_clocks, slot, &zero);
}

static __always_inline u64 step_word(struct tobs_clock *clock)
{
	return clock ? *(volatile u64 *)&clock->word : 0;
}

#endif
