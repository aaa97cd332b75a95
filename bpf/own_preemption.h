/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Programs of a user's in which a task may lose its CPU: what preemption.h does for ours, where the
 * program does not know of it. The first one (BPF_PROG in trainobs_probe.h) tells that it was there,
 * and the second one is the same for all of them (again.bpf.c).
 *
 * An event is known by its task and by where its arguments lie, which is the same for both programs:
 * events that interrupt it, and each other, have theirs elsewhere on the stack.
 */
#ifndef TRAINOBS_OWN_PREEMPTION_H
#define TRAINOBS_OWN_PREEMPTION_H

#include <bpf/bpf_helpers.h>

extern void bpf_preempt_disable(void) __ksym;
extern void bpf_preempt_enable(void) __ksym;
extern void bpf_local_irq_save(unsigned long *flags) __ksym;
extern void bpf_local_irq_restore(unsigned long *flags) __ksym;

/* After bpf_preempt_disable: the kernel takes the CPU when the program has ended (preemption.h). */
#define TRAINOBS_LET_GO(flags)                 \
	({                                     \
		bpf_local_irq_save(&flags);    \
		bpf_preempt_enable();          \
		bpf_local_irq_restore(&flags); \
	})

#define TRAINOBS_NESTED 4 /* a task, a softirq, an interrupt, one that cannot be masked */

struct trainobs_entered {
	unsigned long long at[TRAINOBS_NESTED]; /* where the first one was, and the second not yet */
	unsigned long long handed;		/* where the second one calls the first one */
};

/* The place of an event, or else a free one; the first one where there is none. */
static __always_inline unsigned long long *trainobs_place(struct trainobs_entered *entered,
							  unsigned long long event)
{
	unsigned long long *place = &entered->at[0];

	for (int i = 0; i < TRAINOBS_NESTED; i++)
		if (!entered->at[i])
			place = &entered->at[i];
	for (int i = 0; i < TRAINOBS_NESTED; i++)
		if (entered->at[i] == event)
			place = &entered->at[i];
	return place;
}

#endif
