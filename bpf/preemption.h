/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Programs of tracepoints at which a task may lose its CPU.
 *
 * Since v7.0 it may lose it in the middle of such a program. Until the task goes on, the kernel leaves
 * the same program out of all that happens on that CPU, as if it had called itself (bpf_prog::active,
 * counted in recursion_misses). So a program keeps the CPU while it works for a task that is followed.
 * To give it back is to lose it, which still is inside; so this is done with interrupts off, and the
 * kernel takes the CPU when the program has ended.
 *
 * For what is left, the instructions before and behind, a second program is attached after each, for
 * the events that the first one was left out of. It finds out whether there was one, as the first one
 * does, and calls that for the rest, by a tail call: what counts is there, and verified, once. An event
 * is lost where both are left out, which takes two tasks that lost the CPU there.
 */
#ifndef TRAINOBS_PREEMPTION_H
#define TRAINOBS_PREEMPTION_H

#include <bpf/bpf_tracing.h>

/* In a program of PREEMPTIBLE_PROG: do the work for a task that is followed, without losing the CPU.
 *
 * The first one has a tail call as well, which is never reached, since a context is never NULL. But a
 * program with one gets no stack of its own for each CPU (bpf_enable_priv_stack, v6.13). Nothing but
 * its own guard, which a tail call passes by, would keep two tasks from using that at once. */
#ifdef TOBS_PREEMPTIBLE
#include "own_preemption.h"

#define KEEPING_CPU(work)                                                                \
	({                                                                               \
		void *same = ctx; /* to a compiler it may be another, and is not NULL */ \
		barrier_var(same);                                                       \
		if (again || !ctx) {                                                     \
			bpf_tail_call(same, first, 0);                                   \
		} else {                                                                 \
			unsigned long flags_;                                            \
			bpf_preempt_disable();                                           \
			work;                                                            \
			TRAINOBS_LET_GO(flags_);                                         \
		}                                                                        \
	})
#else
#define KEEPING_CPU(work) ({ work; })
#endif

/* clang-format off */
#define ENTRY_PROG(section, entry, body, again, first, args...)         \
	SEC(section) int entry(unsigned long long *ctx)                 \
	{                                                               \
		_Pragma("GCC diagnostic push")                          \
		_Pragma("GCC diagnostic ignored \"-Wint-conversion\"")  \
		return body(again, first, ___bpf_ctx_cast(args));       \
		_Pragma("GCC diagnostic pop")                           \
	}
/* clang-format on */

/* As BPF_PROG; the body has `again`, whether it is the second one, and `first`, a map by which that
 * calls the first one (src/trainobs/probes/loader.py puts it there). At least one argument. */
#ifdef TOBS_PREEMPTIBLE
#define WITH_AGAIN_PROG(section, name, args...)                           \
	struct {                                                          \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                    \
		__uint(max_entries, 1);                                   \
		__type(key, u32);                                         \
		__type(value, u32);                                       \
	} name##_first SEC(".maps");                                      \
	ENTRY_PROG(section, name, ____##name, false, &name##_first, args) \
	ENTRY_PROG(section, name##_again, ____##name, true, &name##_first, args)
#else
#define WITH_AGAIN_PROG(section, name, args...) \
	ENTRY_PROG(section, name, ____##name, false, NULL, args)
#endif

#define PREEMPTIBLE_PROG(section, name, args...)                              \
	static __always_inline int ____##name(const bool again, void *first,  \
					      unsigned long long *ctx, args); \
	WITH_AGAIN_PROG(section, name, args)                                  \
	static __always_inline int ____##name(const bool again, void *first,  \
					      unsigned long long *ctx, args)

#endif
