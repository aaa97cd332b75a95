/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Programs of events at which a task may lose its CPU.
 *
 * Since v7.0 it may lose it in the middle of a program of a tracepoint. Until the task goes on, the
 * kernel then leaves the same program out of all that happens on that CPU, as if it had called itself
 * (bpf_prog::active). So a program keeps its CPU from its first instruction to its last one: what is
 * left is a moment before and after. An object of its own (bpf/build.py), since older kernels need
 * none of it, and may lack the kfuncs (v6.10) or not allow global functions in between (v6.15).
 */
#ifndef TRAINOBS_PREEMPTION_H
#define TRAINOBS_PREEMPTION_H

#include <bpf/bpf_tracing.h>

#ifdef TOBS_PREEMPTIBLE
extern void bpf_preempt_disable(void) __ksym;
extern void bpf_preempt_enable(void) __ksym;

#define UNINTERRUPTED_PROG(name, args...)                                                   \
	name(unsigned long long *ctx);                                                      \
	static __always_inline typeof(name(0)) ____##name(unsigned long long *ctx, ##args); \
	typeof(name(0)) name(unsigned long long *ctx)                                       \
	{                                                                                   \
		int result;                                                                 \
                                                                                            \
		bpf_preempt_disable();                                                      \
		_Pragma("GCC diagnostic push")                                              \
			_Pragma("GCC diagnostic ignored \"-Wint-conversion\"")              \
				result = ____##name(___bpf_ctx_cast(args));                 \
		_Pragma("GCC diagnostic pop") bpf_preempt_enable();                         \
		return result;                                                              \
	}                                                                                   \
	static __always_inline typeof(name(0)) ____##name(unsigned long long *ctx, ##args)
#else
#define UNINTERRUPTED_PROG BPF_PROG
#endif

#endif
