/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* In the map `tasks`. By itself, since bcc compiles it, too, which makes maps in its own way. */
#ifndef TRAINOBS_TASK_STATE_H
#define TRAINOBS_TASK_STATE_H

#include "trainobs.h"

/* What is known of a task that we follow; gone with the task. */
struct task_state {
	u64 call_ns;	/* when the system call in flight began */
	u64 wait_ns;	/* asleep for storage inside it */
	u64 scratch;	/* nothing: unknown() in maps.h */
	u64 off_ns;	/* when it left the CPU; 0: it runs */
	u64 wake_ns;	/* when it became ready to run */
	u64 on_ns;	/* when it got the CPU; 0: not seen */
	u64 reclaim_ns; /* when it began to free memory; 0: it does not */
	u64 begin;	/* position of the file as the call in flight began */
	u64 aside_ns;	/* when a call of TOBS_STAT or TOBS_LIST began */
	u64 faults;	/* page faults of it that were over at the last fault of a file, plus one */
	u64 filled; /* likewise when pages came in that no call named, and their class: request_class.h */
	u64 inode; /* the regular file called on last, by address, number and generation: ... */
	u64 ino;
	u32 generation;
	u32 class_epoch; /* ... what its class is worth, and ... */
	u32 added_pages;
	int fd;		/* of the call in flight */
	u8 inode_class; /* ... its class */
	u8 call;	/* op of the system call in flight, plus one; 0: none */
	u8 class;
	u8 role;
	u8 flags;
	u8 slot;		 /* its session */
	u8 seen;		 /* enum seen */
	u8 handed;		 /* likewise */
	struct tobs_batch batch; /* the one that it makes; begin_ns 0: none */
};

#endif
