/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What a program of your own includes, to count into the training step in which something happens:
 * see docs/own-probes.md. It is loaded by `Probe("my.c")` beside the probes of trainobs.
 *
 * There is a type of the kernel here for what trainobs itself reads, and no more. For others write
 * down the fields that you need, with __attribute__((preserve_access_index)), or include a
 * vmlinux.h of your own before this file.
 */
#ifndef TRAINOBS_PROBE_H
#define TRAINOBS_PROBE_H

#ifndef __VMLINUX_H__
#define __VMLINUX_H__ /* tells bpf_tracing.h what the registers are called */

#include "vmlinux.h"

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
} __attribute__((preserve_access_index));
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	u64 regs[31], sp, pc, pstate;
};
struct pt_regs {
	u64 regs[31], sp, pc, pstate, orig_x0;
	int syscallno;
} __attribute__((preserve_access_index));
#endif
#endif

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define TRAINOBS_COUNTERS 32

/*
 * Add to a counter, from 0 to TRAINOBS_COUNTERS - 1, in the step that the run of the current task is
 * in: `count` events, and `value` to the sum that TRAINOBS_VALUE names. It does nothing where the
 * task is part of no run that is observed by this process. It returns 0 there, else 1 plus the role
 * of the task (main, thread, worker, child), so that a program can leave early, also by adding 0.
 */
extern int trainobs_add(__u32 counter, __u64 count, __u64 value);

/*
 * What a counter counts, and in which unit; what its values add up to, and in which unit ("ns" and
 * "bytes" are shown as times and sizes). Names have letters, digits, blanks and any of _.- in them,
 * and are no longer than 40. The index is a number, or a macro for one.
 */
#define TRAINOBS_COUNTER(index, name, unit) TRAINOBS_TOLD(counter, index, name, unit)
#define TRAINOBS_VALUE(index, name, unit) TRAINOBS_TOLD(value, index, name, unit)

#define TRAINOBS_TOLD(what, index, name, unit)                        \
	static const char trainobs_##what##_##index[] SEC("trainobs") \
		__attribute__((used)) = #what ":" #index ":" name ":" unit

/*
 * Since v7.0 a task may lose its CPU in a program of a tracepoint, which the kernel then leaves out of
 * all else on that CPU. Compiled there, programs of BPF_PROG keep the CPU, and have a second one.
 */
#ifdef TRAINOBS_PREEMPTIBLE
#include "own_preemption.h"

/* Tell the second program that this one is there; after preemption.h, task_of_event. */
static __always_inline void trainobs_enter(void *entered, unsigned long long event)
{
	struct trainobs_entered *told;

	if (!trainobs_add(0, 0, 0))
		return;
	told = bpf_task_storage_get(entered, bpf_get_current_task_btf(), NULL,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!told)
		return;
	if (told->handed == event)
		told->handed = 0;
	else
		*trainobs_place(told, event) = event;
}

static __always_inline void trainobs_let_go(const char *kept)
{
	unsigned long flags;

	TRAINOBS_LET_GO(flags);
}

/* clang-format off */
#undef BPF_PROG
#define BPF_PROG(name, args...)                                                             \
	name(unsigned long long *ctx);                                                      \
	struct {                                                                            \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                                      \
		__uint(max_entries, 1);                                                     \
		__type(key, __u32);                                                         \
		__type(value, __u32);                                                       \
	} name##_first SEC(".maps");                                                        \
	struct {                                                                            \
		__uint(type, BPF_MAP_TYPE_TASK_STORAGE);                                    \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                       \
		__type(key, int);                                                           \
		__type(value, struct trainobs_entered);                                     \
	} name##_entered SEC(".maps");                                                      \
	static __always_inline typeof(name(0)) ____##name(unsigned long long *ctx, ##args); \
	typeof(name(0)) name(unsigned long long *ctx)                                       \
	{                                                                                   \
		void *same = ctx; /* see preemption.h: never reached */                     \
		barrier_var(same);                                                          \
		if (!ctx)                                                                   \
			bpf_tail_call(same, &name##_first, 0);                              \
		bpf_preempt_disable();                                                      \
		const char kept __attribute__((cleanup(trainobs_let_go))) = 0;              \
		trainobs_enter(&name##_entered, (unsigned long long)same);                  \
		_Pragma("GCC diagnostic push")                                              \
		_Pragma("GCC diagnostic ignored \"-Wint-conversion\"")                      \
		return ____##name(___bpf_ctx_cast(args));                                   \
		_Pragma("GCC diagnostic pop")                                               \
	}                                                                                   \
	static __always_inline typeof(name(0)) ____##name(unsigned long long *ctx, ##args)
/* clang-format on */
#endif

#ifndef TRAINOBS_LICENSE
#define TRAINOBS_LICENSE "GPL" /* without which the kernel refuses most of its helpers */
#endif
static char trainobs_license[] SEC("license") __attribute__((used)) = TRAINOBS_LICENSE;

#endif
