// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * Steps of a process that imports nothing of ours, by uprobes in its libtorch: an object of its own,
 * loaded for each such process beside the probes, whose tasks and clocks it shares. Each event takes
 * microseconds of its thread, so only functions that are called a few times a step have one.
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

#define TO_COME 1 /* tobs_seen::fetch from its name to the making of its record */

/* What is seen of the process, if a task is one of it whose events count. */
static __always_inline struct tobs_seen *seen_by(struct task_state *task)
{
	u32 zero = 0;
	struct tobs_seen *seen = task ? bpf_map_lookup_elem(&seen_process, &zero) : NULL;

	if (!seen || (seen->opens && task->role != TOBS_MAIN))
		return NULL;
	return seen;
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

static __always_inline void begin_fetch(struct tobs_seen *seen, struct tobs_clock *clock, u64 now)
{
	if (!seen->timed || seen->fetch > TO_COME) /* a loader inside of a loader */
		return;
	seen->fetch = TO_COME;
	seen->fetch_ns = now;
	set_phase(clock, TOBS_PHASE_LOADER);
}

/* Global, so that the verifier goes through it once. */
__noinline int tobs_happened(u32 event)
{
	struct task_state *task = current_state();
	struct tobs_seen *seen = seen_by(task);
	struct tobs_clock *clock = task ? clock_of(task->slot) : NULL;
	u64 now = bpf_ktime_get_ns();

	if (!seen || !clock || event >= TOBS_EVENTS)
		return 0;
	__sync_fetch_and_add(&seen->counts[event], 1);
	seen->tids[event] = own_tid(bpf_get_current_task_btf());
	if (!seen->opens)
		return 0;
	if (seen->opens & 1U << event && (!seen->needs || seen->came & seen->needs))
		begin_step(seen, clock, now);
	seen->came |= 1U << event;
	step_in(seen, step_word(clock) >> 8)->counts[event]++;
	if (event == TOBS_EVENT_FETCH)
		begin_fetch(seen, clock, now);
	return 0;
}

/* torch::autograd::Engine::execute */
SEC("uprobe")
int tobs_backward(struct pt_regs *regs)
{
	return tobs_happened(TOBS_EVENT_BACKWARD);
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
	return tobs_happened(event_named(first_argument_after_result(regs)));
}

/* at::RecordFunction::RecordFunction, by which the record of what was just named is made. */
SEC("uprobe")
int tobs_recorded(struct pt_regs *regs)
{
	struct tobs_seen *seen = seen_by(current_state());

	if (seen && seen->fetch == TO_COME)
		seen->fetch = syscall_arg(regs, 1);
	return 0;
}

/* at::RecordFunction::end */
SEC("uprobe")
int tobs_ended(struct pt_regs *regs)
{
	struct task_state *task = current_state();
	struct tobs_seen *seen = seen_by(task);
	struct tobs_clock *clock = task ? clock_of(task->slot) : NULL;

	if (!seen || !clock || seen->fetch <= TO_COME || seen->fetch != syscall_arg(regs, 1))
		return 0;
	step_in(seen, step_word(clock) >> 8)->loader_ns += bpf_ktime_get_ns() - seen->fetch_ns;
	seen->fetch = 0;
	set_phase(clock, TOBS_PHASE_OTHER);
	return 0;
}
