/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names of tasks that say what they are. */
#ifndef TRAINOBS_NAMES_H
#define TRAINOBS_NAMES_H

#include "reading.h"

struct name {
	u64 words[2];
};

static __always_inline struct name name_of(const char *comm)
{
	struct name name = {};

	bpf_probe_read_kernel_str(name.words, sizeof(name.words), comm);
	return name;
}

/* torch/utils/data/_utils/worker.py names its process so (torch 2.5). */
static __always_inline bool is_worker_name(struct name name)
{
	return name.words[0] == 0x5f617461645f7470ULL /* "pt_data_" */ &&
	       name.words[1] == 0x000072656b726f77ULL /* "worker" */;
}

/* src/trainobs/probes/detach.py */
static __always_inline bool is_detach_name(struct name name)
{
	return name.words[0] == 0x7465645f73626f74ULL /* "tobs_det" */ &&
	       name.words[1] == 0x0000000000686361ULL /* "ach" */;
}

#endif
