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
 * For what is left, the instructions before and behind, each program is there a second time, attached
 * after the first one, for the events that the first one was left out of. An event is lost where both
 * are, which takes two tasks that lost the CPU there.
 */
#ifndef TRAINOBS_PREEMPTION_H
#define TRAINOBS_PREEMPTION_H

#include <bpf/bpf_tracing.h>

#ifdef TOBS_PREEMPTIBLE
extern void bpf_preempt_disable(void) __ksym;
extern void bpf_preempt_enable(void) __ksym;
extern void bpf_local_irq_save(unsigned long *flags) __ksym;
extern void bpf_local_irq_restore(unsigned long *flags) __ksym;

/* Work without losing the CPU. */
#define KEEPING_CPU(work)                       \
	({                                      \
		unsigned long flags_;           \
		bpf_preempt_disable();          \
		work;                           \
		bpf_local_irq_save(&flags_);    \
		bpf_preempt_enable();           \
		bpf_local_irq_restore(&flags_); \
	})
#else
#define KEEPING_CPU(work) ({ work; })
#endif

/* clang-format off */
#define ENTRY_PROG(section, entry, body, again, args...)                \
	SEC(section) int entry(unsigned long long *ctx)                 \
	{                                                               \
		_Pragma("GCC diagnostic push")                          \
		_Pragma("GCC diagnostic ignored \"-Wint-conversion\"")  \
		return body(again, ___bpf_ctx_cast(args));              \
		_Pragma("GCC diagnostic pop")                           \
	}
/* clang-format on */

/* As BPF_PROG; the body has `again`, whether it is the second one. At least one argument. */
#ifdef TOBS_PREEMPTIBLE
#define AGAIN_PROG(section, name, args...) ENTRY_PROG(section, name##_again, ____##name, true, args)
#else
#define AGAIN_PROG(section, name, args...)
#endif

#define PREEMPTIBLE_PROG(section, name, args...)                                                \
	static __always_inline int ____##name(const bool again, unsigned long long *ctx, args); \
	ENTRY_PROG(section, name, ____##name, false, args)                                      \
	AGAIN_PROG(section, name, args)                                                         \
	static __always_inline int ____##name(const bool again, unsigned long long *ctx, args)

#endif
