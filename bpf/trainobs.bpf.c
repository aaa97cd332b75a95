// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * The probes of trainobs, one object. tp_btf and iterators only: they need CAP_BPF and CAP_PERFMON,
 * and no tracefs, kernel headers or compiler. User space switches off what a kernel lacks.
 */
#include "syscalls.bpf.h"
#include "page_cache.bpf.h"
#include "block.bpf.h"
#include "sched.bpf.h"
#include "net.bpf.h"
#include "memory.bpf.h"
#include "process_tree.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
