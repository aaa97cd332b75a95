/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The kernel as the probes know it: only the types and fields they use, relocated at load time by
 * CO-RE. Where versions differ the change is named; reading.h says which of them is read. Fields of
 * several versions stand in one structure where their names let them: libbpf seeks each structure
 * among all types of the kernel.
 */
#ifndef TRAINOBS_KERNEL_H
#define TRAINOBS_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef unsigned long size_t;
typedef long ssize_t;
typedef _Bool bool;
#define true 1
#define false 0

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_F_MMAPABLE = 1 << 10,
};

struct pt_regs;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct address_space;

struct inode {
	u16 i_mode;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	unsigned long i_ino;
	u32 i_generation;
	long long i_size;
	struct hlist_head i_dentry;
};

struct qstr {
	u32 len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	union {
		struct hlist_node d_alias;
	} d_u;
	struct hlist_node d_alias; /* v7.1 took the name from the union */
};

struct path {
	struct dentry *dentry;
};

struct file {
	u32 f_mode;
	u32 f_flags;
	long long f_pos;
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};

struct fdtable {
	u32 max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

typedef struct {
	u32 val;
} kuid_t;

typedef struct {
	u32 val;
} kgid_t;

typedef struct {
	u64 val;
} kernel_cap_t;

struct user_namespace {
	struct user_namespace *parent;
	kuid_t owner;
};

struct cred {
	kuid_t uid, suid, euid;
	kgid_t gid, sgid, egid;
	kernel_cap_t cap_permitted;
	struct user_namespace *user_ns;
};

/* Up to v7.1 it is the mm that says who may look into a task. */
struct mm_struct {
	unsigned long flags;
};

struct mm_struct___6_18 {
	struct {
		unsigned long __mm_flags[1];
	} flags;
};

enum task_dumpable {
	TASK_DUMPABLE_OWNER = 1,
};

struct task_exec_state {
	enum task_dumpable dumpable;
};

struct pid_namespace;

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	u32 level;
	struct upid numbers[1];
};

struct linux_binprm {
	u32 secureexec : 1;
};

struct thread_info {
	u32 status; /* of x86 */
};

struct task_struct {
	struct thread_info thread_info;
	u32 __state;
	volatile long state; /* up to v5.13 (2f064a59a11f "sched: Change task_struct::state") */
	u32 flags;
	int pid;
	int tgid;
	unsigned in_iowait : 1;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct mm_struct *mm;
	struct task_exec_state *exec_state; /* since v7.2 */
	struct cred *real_cred;
	struct files_struct *files;
	unsigned long min_flt;
	unsigned long maj_flt;
	char comm[16];
};

struct address_space {
	struct inode *host;
	unsigned long nrpages;
};

struct folio {
	struct address_space *mapping;
	unsigned long _flags_1;
	unsigned long flags;
	unsigned char _folio_order; /* of a large one, up to v6.5 */
};

/* v6.18 wrapped the flags (53fbef56e07d "mm: introduce memdesc_flags_t"). */
struct folio___6_18 {
	struct {
		unsigned long f;
	} flags;
};

enum pageflags {
	PG_head = 6,
};

struct page {
	unsigned long compound_head;
	unsigned long compound_info; /* the same since v7.1; it may hold a mask: see head_of */
	struct address_space *mapping;
	/* Up to v6.0 in the second page of a large folio, and struct folio did not say so. */
	unsigned char compound_order;
};

struct vm_area_struct {
	struct file *vm_file;
};

struct vm_fault {
	struct vm_area_struct *vma;
};

struct bio_vec {
	struct page *bv_page;
};

struct bvec_iter {
	u32 bi_size;
};

struct bio {
	struct bio *bi_next;
	u32 bi_opf;
	struct bvec_iter bi_iter;
	struct bio_vec *bi_io_vec;
};

struct request {
	u32 cmd_flags;
	u32 __data_len;
	struct bio *bio;
	u64 start_time_ns;
	void *end_io;
};

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	u16 skc_family;
	struct in6_addr skc_v6_daddr; /* where the kernel has IPv6 */
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	struct cred *sk_peer_cred;
	unsigned char sk_kern_sock : 1;
};

struct socket {
	struct sock *sk;
};

struct io_cqe {
	__s32 res;
};

/* v5.19 put the result into the request (cef216fc32d7 "io_uring: explicitly keep a CQE in io_kiocb"). */
struct io_kiocb {
	struct file *file;
	u8 opcode;
	struct io_cqe cqe;
};

struct bpf_iter__task {
	struct task_struct *task;
};

/* Helpers that not every kernel has. */
enum bpf_func_id {
	BPF_FUNC_task_pt_regs = 175, /* v5.15 */
	BPF_FUNC_loop = 181,	     /* v5.17 */
};

#pragma clang attribute pop

/* include/uapi/linux/stat.h, include/linux/fs.h, include/uapi/linux/magic.h */
#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFREG 0100000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define S_IFIFO 0010000
#define S_IXUGO 00111
#define MMF_DUMPABLE_MASK 3
#define SUID_DUMP_USER 1
#define FMODE_READ 1
#define FMODE_WRITE 2
#define FMODE_PATH (1 << 14)
#define FMODE_CREATED (1 << 20)
#define O_APPEND 02000
#define RWF_APPEND 0x10
#define RWF_NOAPPEND 0x20
#define RWF_DONTCACHE 0x80 /* since v6.14 */
#define PROT_WRITE 2
#define MAP_SHARED 1 /* MAP_SHARED_VALIDATE has this bit, too */
#define MAP_ANONYMOUS 0x20
#define PROC_SUPER_MAGIC 0x9fa0
#define CGROUP_SUPER_MAGIC 0x27e0eb
#define CGROUP2_SUPER_MAGIC 0x63677270
#define SYSFS_MAGIC 0x62656572
#define ANON_INODE_FS_MAGIC 0x09041934
#define TMPFS_MAGIC 0x01021994
#define OVERLAYFS_SUPER_MAGIC 0x794c7630
#define EROFS_SUPER_MAGIC 0xe0f5e1e2
#define PR_SET_DUMPABLE 4
#define AF_INET 2
#define AF_INET6 10
#define MSG_PEEK 2
#define REQ_OP_MASK 0xff
#define REQ_OP_READ 0
#define REQ_OP_WRITE 1
#define REQ_META (1U << 12)
#define ENOSYS 38
#define TASK_RUNNING 0
#define TASK_STOPPED 4 /* __TASK_STOPPED, include/linux/sched.h */
#define TASK_TRACED 8
#define TS_COMPAT 2	    /* arch/x86/include/asm/thread_info.h */
#define PSR_MODE32_BIT 0x10 /* arch/arm64/include/uapi/asm/ptrace.h */
#define PF_WQ_WORKER 0x20
#define PF_KTHREAD 0x00200000
#define PF_IO_WORKER 0x10 /* include/linux/sched.h, v5.12 */
#if defined(__TARGET_ARCH_arm64)
#define O_DIRECT 0200000
#define O_NOFOLLOW 0100000
#else
#define O_DIRECT 040000
#define O_NOFOLLOW 0400000
#endif

/* include/uapi/linux/io_uring.h */
#define IORING_OP_READV 1
#define IORING_OP_WRITEV 2
#define IORING_OP_READ_FIXED 4
#define IORING_OP_WRITE_FIXED 5
#define IORING_OP_READ 22
#define IORING_OP_WRITE 23
#define IORING_OP_READV_FIXED 60 /* v6.15 */
#define IORING_OP_WRITEV_FIXED 61

#endif
