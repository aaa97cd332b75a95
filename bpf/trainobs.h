/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The contract between the probes and user space. src/trainobs/core/abi.py says the same in
 * Python; tests/kernel/test_contract.py compares the two through the BTF of the built object.
 *
 * A training process writes its step into its clock; the probes add what they see to the row of
 * that step. A row is never cleared: it only grows, and the reader takes differences. So no add is
 * lost between a read and a clear, and the reader needs no write access.
 *
 * One set of programs serves many sessions, each of them one process and what it started. A session
 * has a slot, and in each of the `session_*` maps a map of its own, which nobody else is given.
 */
#ifndef TRAINOBS_H
#define TRAINOBS_H

/* What was done. */
enum tobs_op {
	TOBS_READ,	  /* read calls, direct ones included, sendfile and its like by their
			     source; wait_ns: asleep for storage */
	TOBS_WRITE,	  /* write calls, sendfile and its like by their target */
	TOBS_FSYNC,	  /* fsync, fdatasync, sync_file_range, msync */
	TOBS_OPEN,	  /* opens, by the class of the opened file */
	TOBS_MMAP,	  /* file mappings; bytes: their length */
	TOBS_URING_ENTER, /* calls of io_uring_enter and io_uring_setup that went well */
	TOBS_URING_READ,  /* reads completed by io_uring */
	TOBS_URING_WRITE, /* writes completed by io_uring */
	TOBS_DIRECT_READ, /* the part of the reads above that went past the page cache */
	TOBS_CACHE_READ,  /* reads that the page cache could serve; bytes: of pages touched; by
			     io_uring bytes alone */
	TOBS_CACHE_MISS,  /* pages that reads brought into the page cache */
	TOBS_DEMAND_MISS, /* reads that started read-ahead and waited for it */
	TOBS_FAULT,	  /* faults of mapped files that fault-around did not serve */
	TOBS_FAULT_FILL,  /* pages that faults brought into the page cache, or madvise */
	TOBS_BLOCK_READ,  /* block requests, from issue to completion */
	TOBS_BLOCK_WRITE,
	TOBS_OFFCPU,   /* periods off the CPU; wait_ns: of those, asleep for storage */
	TOBS_RUNQUEUE, /* periods ready to run without a CPU; they lie inside TOBS_OFFCPU */
	TOBS_SEND,     /* socket messages */
	TOBS_RECEIVE,
	TOBS_RECLAIM, /* memory freed by the task that needed it; bytes: freed */
	TOBS_AWAIT, /* asleep for another thread, not for data; bytes: ns until one of gloo's woke it;
		       wait_ns: for Python's lock alone */
	TOBS_ONCPU, /* periods on a CPU, counted when they end */
	/* Of the training thread; in place of a class the phase, logging among other. */
	TOBS_PHASE_OFF, /* off the CPU; wait_ns: of that, ready to run; bytes: ns for Python's lock */
	TOBS_PHASE_SLEEP, /* asleep for nothing that is known; wait_ns: for storage; bytes:
			     the part in ns in which it was stopped, by a signal or who traces it */
	TOBS_AIO,  /* calls of io_submit that went well: what they read and write is not counted */
	TOBS_HINT, /* posix_fadvise and readahead; bytes: pages they brought into the page cache */
	TOBS_MAP_WRITE,	   /* file mappings to write through, and, under checkpoint, calls of msync
			      while one is saved: what is written through them is not counted */
	TOBS_UNNAMED_FILL, /* the part of TOBS_FAULT_FILL in who loads, of files of no class */
	TOBS_OPS,
};

/* What kind of file it was done to. */
enum tobs_class {
	TOBS_OTHER,
	TOBS_DATA,
	TOBS_CHECKPOINT,
	TOBS_LIBRARY,
	TOBS_SHM,
	TOBS_PIPE, /* pipes and local sockets */
	TOBS_SOCKET,
	TOBS_PSEUDO,
	TOBS_CLASSES,
};

/* Who did it. */
enum tobs_role {
	TOBS_MAIN,   /* the thread that runs the training loop */
	TOBS_THREAD, /* another thread of that process */
	TOBS_WORKER, /* a DataLoader worker */
	TOBS_CHILD,  /* any other descendant */
	TOBS_KERNEL, /* a kernel thread that writes back a file of ours */
	TOBS_ROLES,
};

/* What the training loop says it is doing: the low byte of the step word. */
enum tobs_phase {
	TOBS_PHASE_OTHER,
	TOBS_PHASE_LOADER,
	TOBS_PHASE_TRANSFER,
	TOBS_PHASE_FORWARD,
	TOBS_PHASE_BACKWARD,
	TOBS_PHASE_OPTIMIZER,
	TOBS_PHASE_CHECKPOINT,
	TOBS_PHASE_VALIDATION,
	TOBS_PHASE_LOGGING, /* higher numbers are names of the user's, and count as other */
};

#define TOBS_RING 128
#define TOBS_SLOTS 64
#define TOBS_BUCKETS 40
#define TOBS_SYSCALLS 512
#define TOBS_BATCHES 512
#define TOBS_MAIN_WORKER 0xffffffffU /* of a batch that the training thread makes itself */
#define TOBS_NAME 48
#define TOBS_OWN 32 /* counters of a user's program */
#define TOBS_SIZES 32
#define TOBS_PARENT 32

/* In the table of system calls: the one whose refused arguments are marks. Beyond every op. */
#define TOBS_MARK TOBS_OPS
#define TOBS_BATCH_BEGIN 0x746f6273 /* worker, number, loader, pass; "tobs" */
#define TOBS_BATCH_END 0x746f6274   /* bytes */
#define TOBS_BATCH_VOID 0x746f6275  /* there was no batch: an exception, the end of the data */
/* Likewise: calls that are counted only where files are, and in no step. */
#define TOBS_STAT (TOBS_OPS + 1) /* asking for the attributes of a file */
#define TOBS_LIST (TOBS_OPS + 2) /* listing a directory */

struct tobs_cell {
	unsigned long long count;
	unsigned long long bytes;
	unsigned long long ns;
	unsigned long long wait_ns;
};

/* In session_clocks, the one map that a session's process may write. */
struct tobs_clock {
	unsigned long long word;  /* serial of the step << 8 | phase */
	unsigned long long epoch; /* that files are read for */
	unsigned long long padding[6];
};

/* log2 latency buckets: bucket b counts [2^b, 2^(b+1)) nanoseconds. */
struct tobs_buckets {
	unsigned long long count[TOBS_BUCKETS];
};

/* Cells of a row: a multiple of 8, as operations times classes times roles. */
#define TOBS_CELLS (TOBS_OPS * TOBS_CLASSES * TOBS_ROLES)

/* What was counted in one step. */
struct tobs_row {
	struct tobs_cell cells[TOBS_OPS][TOBS_CLASSES][TOBS_ROLES];
};

/* What it took to make one batch of a loader, in the task that made it. */
struct tobs_batch {
	unsigned long long ordinal; /* how many were made before, plus one; written last */
	unsigned long long loader;  /* which loader, ... */
	unsigned int pass;	    /* ... which pass over it, ... */
	unsigned int worker;	    /* ... which worker of it, ... */
	unsigned long long number;  /* ... and which batch of that worker in that pass, from 0 */
	unsigned long long begin_ns;
	unsigned long long end_ns;
	unsigned long long read_bytes; /* read calls on training data */
	unsigned long long read_count;
	unsigned long long read_ns;
	unsigned long long device_ns;	   /* asleep for a device */
	unsigned long long runqueue_ns;	   /* ready to run without a CPU */
	unsigned long long sleep_ns;	   /* asleep for anything else */
	unsigned long long received_bytes; /* on internet sockets */
	unsigned long long handed_bytes;   /* in the tensors of the batch, as its maker says */
	unsigned long long slowest_ns;	   /* the slowest read or open of training data ... */
	char slowest_name[TOBS_NAME];	   /* ... and the end of the name of its file */
};

/* What could not be counted, since the session began. */
struct tobs_losses {
	unsigned long long tasks;    /* a new task found no memory and is not followed */
	unsigned long long requests; /* a block request found no room, or its end was not seen */
	unsigned long long classes;  /* the class of a file could not be kept */
};

/* What is done to files where each of them is counted: files.bpf.h. */
enum tobs_file_op {
	TOBS_FILE_READ,
	TOBS_FILE_WRITE,
	TOBS_FILE_STAT,
	TOBS_FILE_LIST,
	TOBS_FILE_OPS,
};

/* In which epoch, what was done, to which class of files. */
struct tobs_total_key {
	unsigned int epoch;
	unsigned short op;
	unsigned short class;
};

/* Likewise, to which file. */
struct tobs_file_key {
	unsigned long long ino;
	unsigned int dev;
	unsigned int generation;
	unsigned int epoch;
	enum tobs_file_op op;
};

/* Calls, and how they lie in their files. */
struct tobs_access {
	unsigned long long count; /* calls that moved bytes */
	unsigned long long bytes;
	unsigned long long ns;
	unsigned long long empty_count;	      /* calls that moved none: at the end of the file */
	unsigned long long failed_count;      /* calls that failed */
	unsigned long long first_count;	      /* the first ones on an open file */
	unsigned long long consecutive_count; /* that began where the one before had ended, ... */
	unsigned long long forward_count;     /* ... behind that, ... */
	unsigned long long backward_count;    /* ... before it; of others no position is known */
	unsigned long long aligned_count;     /* that began at a multiple of a page */
	unsigned long long open_count;
	unsigned long long mmap_count;
	unsigned long long unique_least; /* different bytes: no fewer, ... */
	unsigned long long unique_most;	 /* ... and no more, ... */
	unsigned long long untold_bytes; /* ... but for so many, of which it is not known */
};

/* In `totals`: all files of a class. */
struct tobs_total {
	struct tobs_access access;
	unsigned long long unlisted_count;    /* of `count`, on files without room */
	unsigned long long sizes[TOBS_SIZES]; /* calls that moved [2^b, 2^(b+1)) bytes */
};

/* In `files`: one file. */
struct tobs_file {
	struct tobs_access access;
	unsigned long long front; /* all bytes before it are known; bit 63: it moves no more */
	unsigned long long size;
	unsigned int class;
	unsigned int mixed;	  /* which of its bytes are new in the epoch is not known */
	char parent[TOBS_PARENT]; /* the beginning of the name of its directory, ... */
	char name[TOBS_NAME];	  /* ... and the end of its own */
};

/* Who was sent to or received from, by whom, in which epoch, and in which phase of the training thread. */
struct tobs_peer_key {
	unsigned int address[4]; /* of IPv6, or of IPv4 mapped to it, as sent; 0: others */
	unsigned int epoch;
	unsigned short own_port; /* both ports of a peer on this machine, ... */
	unsigned short port;	 /* ... where addresses tell no processes apart; else 0 */
	unsigned short phase;
	unsigned short role;
};

/* In `peers`, and in `unlisted_peers` of those for whom that has no room. */
struct tobs_peer {
	unsigned long long sent_count;
	unsigned long long sent_bytes;
	unsigned long long received_count;
	unsigned long long received_bytes;
};

/* All that a session counts, read-only for user space; it only grows. Elements of session_sums that
 * follow each other: the rows of the ring, several in each, and the rest. Not one element, since
 * Linux before 6.0 has none of more than 4 MB (KMALLOC_MAX_SIZE, kernel/bpf/arraymap.c). */
#define TOBS_ROWS_EACH 16
#define TOBS_ROW_ELEMENTS (TOBS_RING / TOBS_ROWS_EACH)

struct tobs_rows {
	struct tobs_row rows[TOBS_ROWS_EACH]; /* by step */
};

struct tobs_counts {
	struct tobs_buckets step_latency[TOBS_RING]; /* of reading block requests, by step */
	struct tobs_buckets histograms[TOBS_OPS][TOBS_CLASSES][TOBS_ROLES]; /* since it began */
	struct tobs_losses losses;
	unsigned char touched[TOBS_CELLS]; /* cells that anything was added to, in any row */
	unsigned long long batch_count;	   /* batches so far, in a ring: */
	struct tobs_batch batches[TOBS_BATCHES];
};

/* What a process that imports nothing of ours does, seen from outside: calls into torch. */
enum tobs_event {
	TOBS_EVENT_BACKWARD,  /* autograd's engine is started */
	TOBS_EVENT_OPTIMIZER, /* an optimizer begins to step */
	TOBS_EVENT_FETCH,     /* a loader is asked for a batch */
	TOBS_EVENTS,
};

/* A step of such a process. */
struct tobs_seen_step {
	unsigned long long begin_ns;
	unsigned long long loader_ns;		/* of it, in fetches */
	unsigned long long counts[TOBS_EVENTS]; /* events, the one that began it included */
};

/* What is seen of such a process, and when it begins a step: shared with user space. */
struct tobs_seen {
	unsigned int opens; /* events, as bits, that begin a step; 0: none yet, all threads count */
	unsigned int needs; /* ... once one of these came in the step before; 0: at once */
	unsigned int came;  /* events of the step that goes on */
	unsigned int timed; /* whether fetches are timed */
	unsigned int depth; /* scopes with a name, from a fetch inwards; 0: no fetch goes on */
	unsigned int half_turns; /* odd: an optimizer has stepped since the last fetch */
	unsigned int nests; /* whether scopes are seen to end, so that one inside another is known */
	unsigned int inside;	     /* scopes with a name, from a step of an optimizer inwards */
	unsigned long long outer_ns; /* when that step began */
	unsigned long long fetch_ns; /* when the fetch that goes on began */
	unsigned long long scopes;   /* that began so far, while there was no rule for steps ... */
	unsigned long long ends;     /* ... and that ended */
	unsigned long long counts[TOBS_EVENTS];	 /* so far */
	unsigned int tids[TOBS_EVENTS + 1];	 /* who did it last, as it sees itself; padding */
	unsigned int elsewhere[TOBS_EVENTS + 1]; /* times that it was another thread; padding */
	struct tobs_seen_step steps[TOBS_RING];	 /* by serial */
};

#define TOBS_CALLS 32768 /* a power of two */

/* System calls of a process in which no function of torch is found: when each began, in ns, and in
 * place of the low bits its number. By order, the one after the last at `count`. */
struct tobs_calls {
	unsigned long long count;
	unsigned long long calls[TOBS_CALLS];
};

/* settings: what holds for the session of a slot. Written by whoever loaded the programs. */
struct tobs_settings {
	unsigned int open;	  /* 0: nobody is followed for it any more */
	unsigned int guarded;	  /* only tasks that its client might look into are followed */
	unsigned int class_epoch; /* bumped with every root: classes decided before are void */
	unsigned int infer_data;  /* what a loader reads from unclassified regular files is data */
	unsigned int tgid; /* of its process, as the kernel numbers it; by tobs_adopt, as ... */
	unsigned int uid;  /* ... what the client was when it connected: its user, ... */
	unsigned int gid;  /* ... its group, ... */
	unsigned short overlaid;      /* a root of data lies on overlayfs: by tobs_root */
	unsigned short read_directly; /* with O_DIRECT, which leads to no file: askers.h */
	unsigned long long permitted; /* ... its capabilities, ... */
	unsigned long long user_ns;   /* ... and where it has them; 0: it was not asked yet */
	long long clock_ahead_ns; /* CLOCK_MONOTONIC there, less the kernel's: a time namespace */
};

/* What a user's programs count: how often, and a sum of what they measured. */
struct tobs_own_cell {
	unsigned long long count;
	unsigned long long value;
};

/* In own_rows of support.bpf.c; by step of the ring, as `rows`. */
struct tobs_own_row {
	struct tobs_own_cell cells[TOBS_OWN][TOBS_ROLES];
};

/* control: arguments of the iterator programs, and their answer. */
struct tobs_control {
	unsigned int slots;	 /* from here on no slot was ever used */
	unsigned int slot;	 /* which session it is about */
	unsigned int tgid;	 /* its process, as the reader's name space numbers it ... */
	unsigned int tid;	 /* ... and a thread of it, as its own name space does */
	unsigned int root_fd;	 /* tobs_root: a directory that the reader has open ... */
	unsigned int root_class; /* ... and the class of what lies below it */
	unsigned int found;	 /* adopt, leave: threads `tid`; release: tasks; root: maps */
	unsigned int client_fd; /* tobs_adopt, where guarded: a connection that the reader has open */
	unsigned int
		limits_hidden; /* 1: whose requests a limit holds back (askers.h); 2: there is one */
};

/* One system call number: what it does, and which arguments (from 1) hold file descriptors. */
struct tobs_syscall {
	unsigned char op_plus_one; /* 0: not followed */
	unsigned char fd_arg;	   /* 0: none */
	unsigned char source_arg;  /* of what is read on the way; 0: none */
	unsigned char offset_arg;  /* of the position in the file; 0: the file's own */
	unsigned char storage; /* task states in which one that sleeps in it waits for storage */
};

#define TOBS_NO_OFFSET 255 /* it stands in the memory of the caller, if at all */
#define TOBS_RWF 8	   /* in offset_arg: RWF_* flags stand in the sixth argument */

/* What user space tells of the machine, between open and load. */
struct tobs_machine {
	struct tobs_syscall syscalls[TOBS_SYSCALLS];
	unsigned int page_shift; /* log2 of the bytes of a page: 12, on arm64 also 14 or 16 */
};

_Static_assert(sizeof(struct tobs_cell) == 32, "a cell is four words");
_Static_assert(sizeof(struct tobs_clock) == 64, "a clock is one cache line");
_Static_assert(sizeof(struct tobs_row) == 32 * TOBS_OPS * TOBS_CLASSES * TOBS_ROLES, "no padding");
_Static_assert(sizeof(struct tobs_batch) == 120 + TOBS_NAME, "no padding");
_Static_assert(sizeof(struct tobs_losses) == 24, "no padding");
_Static_assert(sizeof(struct tobs_seen_step) == 16 + 8 * TOBS_EVENTS, "no padding");
_Static_assert(sizeof(struct tobs_seen) ==
		       72 + 16 * TOBS_EVENTS + TOBS_RING * sizeof(struct tobs_seen_step),
	       "no padding");
_Static_assert(sizeof(struct tobs_calls) == 8 + 8 * TOBS_CALLS, "no padding");
_Static_assert(sizeof(struct tobs_settings) == 56, "no padding");
_Static_assert(sizeof(struct tobs_own_row) == 16 * TOBS_OWN * TOBS_ROLES, "no padding");
_Static_assert(sizeof(struct tobs_control) == 36, "no padding");
_Static_assert(sizeof(struct tobs_rows) <= 4 << 20, "more than an element may have");
_Static_assert(sizeof(struct tobs_counts) <= sizeof(struct tobs_rows), "of another element's size");
_Static_assert(sizeof(struct tobs_counts) ==
		       sizeof(struct tobs_buckets) *
				       (TOBS_RING + TOBS_OPS * TOBS_CLASSES * TOBS_ROLES) +
			       sizeof(struct tobs_losses) + TOBS_CELLS +
			       sizeof(unsigned long long) +
			       sizeof(struct tobs_batch) * TOBS_BATCHES,
	       "no padding");
_Static_assert(sizeof(struct tobs_total_key) == 8, "no padding");
_Static_assert(sizeof(struct tobs_file_key) == 24, "no padding");
_Static_assert(sizeof(struct tobs_access) == 120, "no padding");
_Static_assert(sizeof(struct tobs_total) == 128 + 8 * TOBS_SIZES, "no padding");
_Static_assert(sizeof(struct tobs_file) == 144 + TOBS_PARENT + TOBS_NAME, "no padding");
_Static_assert(sizeof(struct tobs_peer_key) == 28, "no padding");
_Static_assert(sizeof(struct tobs_syscall) == 5, "no padding");
_Static_assert(sizeof(struct tobs_machine) == 5 * TOBS_SYSCALLS + 4, "no padding");

#endif
