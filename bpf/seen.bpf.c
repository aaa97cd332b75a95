// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * Steps of a process that imports nothing of ours, by uprobes in its libtorch: an object of its own,
 * loaded for each such process beside the probes, whose tasks and clocks it shares. Each event takes
 * microseconds of its thread, so only functions that are called a few times a step have one. Where
 * there are none of them, its system calls in their order (tobs_called).
 *
 * Python's optimizers and loaders name what they do for torch's profiler, also while it is off:
 * `Optimizer.step#SGD.step`, `enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`
 * (torch/optim/optimizer.py and torch/utils/data/dataloader.py of torch 2.13).
 */

#include "reading.h"
#include "tasks.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tobs_seen);
} seen_process SEC(".maps");

#define LONGEST_STEP_NS (30ULL * 1000000000) /* of an optimizer that steps by others */

static __always_inline struct tobs_seen *seen_by(struct task_state *task)
{
	u32 zero = 0;

	return task ? bpf_map_lookup_elem(&seen_process, &zero) : NULL;
}

/* Whether what a task does counts: from the first step on, what the training thread does. */
static __always_inline bool counts(struct tobs_seen *seen, struct task_state *task)
{
	return !seen->opens || task->role == TOBS_MAIN;
}

static __always_inline struct tobs_seen_step *step_in(struct tobs_seen *seen, u64 serial)
{
	return &seen->steps[serial & (TOBS_RING - 1)];
}

/* The step is there before the word that tells of it. */
static __always_inline void begin_step(struct tobs_seen *seen, struct tobs_clock *clock, u64 now)
{
	u64 serial = (step_word(clock) >> 8) + 1;

	*step_in(seen, serial) = (struct tobs_seen_step){ .begin_ns = now };
	seen->came = 0;
	barrier();
	clock->word = serial << 8;
}

static __always_inline void set_phase(struct tobs_clock *clock, u32 phase)
{
	clock->word = (step_word(clock) & ~0xffULL) | phase;
}

/* A scope with a name begins; those inside of a fetch, or of an optimizer's step, are counted to
 * find its end. */
static __always_inline void begin_scope(struct tobs_seen *seen, struct tobs_clock *clock, u32 event,
					u64 now)
{
	if (!seen->opens)
		__sync_fetch_and_add(&seen->scopes, 1);
	if (event == TOBS_EVENT_FETCH) /* should an end have been missed */
		seen->inside = 0;
	if (!seen->inside && seen->nests && event == TOBS_EVENT_OPTIMIZER)
		seen->outer_ns = now;
	if (seen->inside || (seen->nests && event == TOBS_EVENT_OPTIMIZER))
		seen->inside++;
	if (!seen->timed)
		return;
	if (event == TOBS_EVENT_OPTIMIZER && seen->depth) { /* it is not inside of a fetch */
		seen->depth = 0;
		set_phase(clock, TOBS_PHASE_OTHER);
	}
	if (seen->depth) {
		seen->depth++;
	} else if (event == TOBS_EVENT_FETCH) {
		seen->depth = 1;
		seen->fetch_ns = now;
		set_phase(clock, TOBS_PHASE_LOADER);
	}
}

/* A turn is an optimizer's steps and the fetches after them, however many there are of both. */
static __always_inline void count_turn(struct tobs_seen *seen, u32 event)
{
	if (event == (seen->half_turns & 1 ? TOBS_EVENT_FETCH : TOBS_EVENT_OPTIMIZER))
		seen->half_turns++;
}

static __always_inline void count(struct tobs_seen *seen, struct task_state *task,
				  struct tobs_clock *clock, u32 event, u64 now)
{
	u32 tid = own_tid(bpf_get_current_task_btf());

	if (seen->tids[event] && seen->tids[event] != tid)
		__sync_fetch_and_add(&seen->elsewhere[event], 1);
	if (!counts(seen, task))
		return;
	__sync_fetch_and_add(&seen->counts[event], 1);
	seen->tids[event] = tid;
	count_turn(seen, event);
	if (!seen->opens)
		return;
	if (seen->opens & 1U << event && (!seen->needs || seen->came & seen->needs))
		begin_step(seen, clock, now);
	seen->came |= 1U << event;
	step_in(seen, step_word(clock) >> 8)->counts[event]++;
}

/* torch::autograd::Engine::execute */
SEC("uprobe")
int tobs_backward(struct pt_regs *regs)
{
	struct task_state *task = current_state();
	struct tobs_seen *seen = seen_by(task);
	struct tobs_clock *clock = task ? clock_of(task->slot) : NULL;

	if (seen && clock)
		count(seen, task, clock, TOBS_EVENT_BACKWARD, bpf_ktime_get_ns());
	return 0;
}

/* The event that a name tells of; TOBS_EVENTS: none. The first field of a std::string points to its
 * characters. */
static __always_inline u32 event_named(u64 string)
{
	u64 characters = 0, words[2] = {};

	bpf_probe_read_user(&characters, sizeof(characters), (void *)string);
	bpf_probe_read_user(words, sizeof(words), (void *)characters);
	if (words[0] == 0x657a696d6974704fULL /* "Optimize" */ &&
	    words[1] << 8 == 0x23706574732e7200ULL /* "r.step#" */)
		return TOBS_EVENT_OPTIMIZER;
	if (words[0] == 0x746172656d756e65ULL /* "enumerat" */ &&
	    words[1] == 0x6f4c617461442865ULL /* "e(DataLo" */)
		return TOBS_EVENT_FETCH;
	return TOBS_EVENTS;
}

/* torch::autograd::profiler::record_function_enter_new */
SEC("uprobe")
int tobs_named(struct pt_regs *regs)
{
	u32 event = event_named(first_argument_after_result(regs));
	struct task_state *task = current_state();
	struct tobs_seen *seen = seen_by(task);
	struct tobs_clock *clock = task ? clock_of(task->slot) : NULL;
	u64 now = bpf_ktime_get_ns();

	if (!seen || !clock)
		return 0;
	if (event == TOBS_EVENT_OPTIMIZER && seen->inside && counts(seen, task)) {
		if (now - seen->outer_ns < LONGEST_STEP_NS)
			event = TOBS_EVENTS; /* one around it steps by its means, as SAM does */
		else
			seen->inside = 0; /* its end was missed */
	}
	if (event < TOBS_EVENTS)
		count(seen, task, clock, event, now);
	if (counts(seen, task))
		begin_scope(seen, clock, event, now);
	return 0;
}

/* c10::IValue::toCustomClass<PythonRecordFunction>: the argument of the operator that ends a scope */
SEC("uprobe")
int tobs_ended(struct pt_regs *regs)
{
	struct task_state *task = current_state();
	struct tobs_seen *seen = seen_by(task);
	struct tobs_clock *clock = task ? clock_of(task->slot) : NULL;

	if (!seen || !clock || !counts(seen, task))
		return 0;
	if (!seen->opens)
		__sync_fetch_and_add(&seen->ends, 1);
	if (seen->inside)
		seen->inside--;
	if (!seen->depth || --seen->depth)
		return 0;
	step_in(seen, step_word(clock) >> 8)->loader_ns += bpf_ktime_get_ns() - seen->fetch_ns;
	set_phase(clock, TOBS_PHASE_OTHER);
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tobs_calls);
} seen_calls SEC(".maps");

/* What the training thread asks of the kernel, whatever it is. It alone writes here. */
SEC("tp_btf/sys_enter")
int BPF_PROG(tobs_called, struct pt_regs *regs, long number)
{
	struct task_state *task = current_state();
	u32 zero = 0;
	struct tobs_calls *calls;
	u64 nr = number;

	if (!task || task->role != TOBS_MAIN || nr >= TOBS_SYSCALLS)
		return 0;
	calls = bpf_map_lookup_elem(&seen_calls, &zero);
	if (!calls)
		return 0;
	calls->calls[calls->count & (TOBS_CALLS - 1)] =
		(bpf_ktime_get_ns() & ~(TOBS_SYSCALLS - 1ULL)) | nr;
	barrier();
	calls->count++;
	return 0;
}
