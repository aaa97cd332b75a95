/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The error numbers that bpf/usdt.bpf.h uses, where no headers of the kernel are installed. */
#ifndef TRAINOBS_ERRNO_H
#define TRAINOBS_ERRNO_H

#define ENOENT 2
#define ESRCH 3
#define EINVAL 22

#endif
