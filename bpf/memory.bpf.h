/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory: what a task has to free itself before it gets any, for the machine or for its cgroup. */
#include "maps.h"

static __always_inline int begin_reclaim(void)
{
	struct task_state *task = current_state();

	if (task)
		task->reclaim_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int end_reclaim(u64 pages)
{
	struct task_state *task = current_state();

	if (!task || !task->reclaim_ns)
		return 0;
	add(account_of(task), TOBS_RECLAIM, TOBS_OTHER, 1, bytes_of_pages(pages),
	    bpf_ktime_get_ns() - task->reclaim_ns, 0);
	task->reclaim_ns = 0;
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(tobs_reclaim)
{
	return begin_reclaim();
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(tobs_reclaimed, unsigned long pages)
{
	return end_reclaim(pages);
}

/* The limit of a cgroup, as containers have one, is no concern of the two above. */
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(tobs_cg_reclaim)
{
	return begin_reclaim();
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(tobs_cg_freed, unsigned long pages)
{
	return end_reclaim(pages);
}
