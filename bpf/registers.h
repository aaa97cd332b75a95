/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Where a system call has its number and its arguments, on each machine. */
#ifndef TRAINOBS_REGISTERS_H
#define TRAINOBS_REGISTERS_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long di, si, dx, r10, r8, r9, ax, orig_ax;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 regs[31];
	u64 pstate;
	u64 orig_x0;
	int syscallno;
};
#else
#error "trainobs knows the system call registers of x86_64 and aarch64 only"
#endif

#pragma clang attribute pop

static __always_inline u32 syscall_number(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

/* Whether a call is not over. Behind it, on its way back to user space, a task may sleep as well: frozen,
 * or held back for its memory. */
static __always_inline bool is_inside_call(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (long)regs->ax == -ENOSYS;
#else
	return regs->regs[0] == regs->orig_x0;
#endif
}

/* At the begin of a call as at its end, when the first register of aarch64 holds the result. */
static __always_inline u64 syscall_arg(struct pt_regs *regs, u32 arg)
{
#if defined(__TARGET_ARCH_x86)
	switch (arg) {
	case 1:
		return regs->di;
	case 2:
		return regs->si;
	case 3:
		return regs->dx;
	case 4:
		return regs->r10;
	case 5:
		return regs->r8;
	default:
		return regs->r9;
	}
#else
	switch (arg) {
	case 1:
		return regs->orig_x0;
	case 2:
		return regs->regs[1];
	case 3:
		return regs->regs[2];
	case 4:
		return regs->regs[3];
	case 5:
		return regs->regs[4];
	default:
		return regs->regs[5];
	}
#endif
}

/* The first argument of a C++ function that returns an object too large for registers, at its first
 * instruction. The place for that object is told before it on x86_64, and apart (x8) on aarch64. */
static __always_inline u64 first_argument_after_result(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->si;
#else
	return regs->regs[0];
#endif
}

#endif
