/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * How the probes read the kernel's memory. What differs between kernel versions is handled here and
 * in vmlinux.h; the conditions are constants once the object is loaded.
 */
#ifndef TRAINOBS_READING_H
#define TRAINOBS_READING_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "preemption.h"
#include "registers.h"

/*
 * Read kernel memory behind a pointer that the verifier does not know. A kfunc of v6.2 gives the
 * pointer a type, and reading through it is a plain load; a helper call takes some 30 ns. An object
 * that names a kfunc which the kernel lacks needs CAP_SYS_ADMIN to be loaded (libbpf looks for it in
 * all modules), hence a second object without (bpf/build.py).
 *
 * UNTRUSTED does it for a pointer that the verifier knows: for each pointer that is read through a
 * trusted one it seeks all types of the kernel for whether the new one may be trusted, too. That was
 * a quarter of the verification.
 */
#ifdef TOBS_NO_KFUNC
#define UNTRUSTED(type, pointer) ((type *)(pointer))
#define FIELD(object, fields...) BPF_CORE_READ(object, fields)
#else
extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym;

#define UNTRUSTED(type, pointer) ((type *)bpf_rdonly_cast((pointer), bpf_core_type_id_kernel(type)))
#define FIELD(object, fields...) ___arrow(object, fields)
#endif

/* As BPF_CORE_READ: FIELD from what UNTRUSTED gave, READ from any pointer or number. What they read of
 * a pointer is one; where a number is asked for, BPF_CORE_READ reads it. So it does what shares its place
 * with a pointer: the verifier takes the first of both. */
#define READ(type, pointer, fields...)                    \
	({                                                \
		type *object_ = UNTRUSTED(type, pointer); \
		FIELD(object_, fields);                   \
	})

/* Whether the kernel has a helper, as a constant: the verifier passes over what is not for it. */
#define HAS_HELPER(name) bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_##name)

/* What a task that leaves the CPU waits for; TASK_RUNNING: it could go on. */
static __always_inline u32 run_state(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return BPF_CORE_READ(task, state);
}

static __always_inline struct upid *name_at(struct pid *pid, u32 level)
{
	return (void *)pid + bpf_core_field_offset(struct pid, numbers) +
	       level * bpf_core_type_size(struct upid);
}

/* What a thread calls itself (gettid). By helpers: seen.bpf.c asks it, too, on any kernel. */
static __always_inline u32 own_tid(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	struct upid *name = name_at(pid, BPF_CORE_READ(pid, level));

	return BPF_CORE_READ(name, nr);
}

/* Whether a task is in a call of 32 bits, whose numbers mean others. */
static __always_inline bool is_32_bit_call(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return bpf_get_current_task_btf()->thread_info.status & TS_COMPAT;
#else
	return regs->pstate & PSR_MODE32_BIT;
#endif
}

/* The file that a folio caches. Before v5.16 there are no folios, and it is a page. */
static __always_inline struct inode *folio_inode(struct folio *folio)
{
	struct address_space *mapping;

	if (bpf_core_type_exists(struct folio)) {
		mapping = READ(struct folio, folio, mapping);
		return BPF_CORE_READ(mapping, host);
	}
	return BPF_CORE_READ((struct page *)folio, mapping, host);
}

static __always_inline u64 second_page_order(struct page *page)
{
	struct page *second = (void *)page + bpf_core_type_size(struct page);

	return bpf_core_field_exists(second->compound_order) ?
		       BPF_CORE_READ(second, compound_order) :
		       0;
}

/* Pages of a folio. Large ones came to the page cache with v5.18. */
static __always_inline u64 folio_pages(struct folio *folio)
{
	unsigned long flags, order = 0;

	if (!bpf_core_type_exists(struct folio))
		return 1;
	if (bpf_core_field_exists(((struct folio___6_18 *)folio)->flags.f))
		flags = READ(struct folio___6_18, folio, flags.f);
	else
		flags = READ(struct folio, folio, flags);
	if (!(flags & (1UL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(folio->_folio_order))
		order = READ(struct folio, folio, _folio_order);
	else if (bpf_core_field_exists(folio->_flags_1))
		order = READ(struct folio, folio, _flags_1) & 0xff;
	else
		order = second_page_order((struct page *)folio);
	return 1UL << (order & 31);
}

/* A name of an inode, where no open file is at hand; NULL if it has none. */
static __always_inline struct dentry *dentry_of(struct inode *inode)
{
	struct hlist_node *first = BPF_CORE_READ(inode, i_dentry.first);

	if (!first)
		return NULL;
	if (bpf_core_field_exists(struct dentry, d_u.d_alias))
		return (void *)first - bpf_core_field_offset(struct dentry, d_u.d_alias);
	return (void *)first - bpf_core_field_offset(struct dentry, d_alias);
}

/*
 * The first of the pages that a page belongs to. In a later one bit 0 is set, and the rest is the
 * address of the first, or, since v7.1 where a struct page is a power of two long, the mask that
 * turns the address of any of them into that of the first: ones, then zeros, as no address is.
 */
static __always_inline struct page *head_of(struct page *page)
{
	unsigned long info, zeros;

	if (bpf_core_field_exists(page->compound_head))
		info = BPF_CORE_READ(page, compound_head);
	else
		info = BPF_CORE_READ(page, compound_info);
	if (!(info & 1))
		return page;
	info -= 1;
	zeros = ~info;
	if (zeros & (zeros + 1))
		return (struct page *)info;
	return (struct page *)((unsigned long)page & info);
}

/* The first folio, or page, that a bio carries. */
static __always_inline struct page *bio_folio(struct bio *bio)
{
	struct bio_vec *first = READ(struct bio, bio, bi_io_vec);
	struct page *page = BPF_CORE_READ(first, bv_page);

	return page ? head_of(page) : NULL;
}

/* The file whose pages a bio carries, the block device for metadata; NULL for direct I/O. */
static __always_inline struct inode *bio_inode(struct bio *bio)
{
	struct page *page = bio_folio(bio);
	unsigned long mapping;

	if (!page)
		return NULL;
	if (bpf_core_type_exists(struct folio))
		mapping = (unsigned long)BPF_CORE_READ((struct folio *)page, mapping);
	else
		mapping = (unsigned long)BPF_CORE_READ(page, mapping);
	if (!mapping || (mapping & 3)) /* anonymous or movable */
		return NULL;
	return BPF_CORE_READ((struct address_space *)mapping, host);
}

/* AF_INET and the like, of an open socket. */
static __always_inline u16 family_of(struct file *file)
{
	struct socket *socket = READ(struct file, file, private_data);

	return READ(struct socket, socket, sk, __sk_common.skc_family);
}

/* An entry of the table of open files is one pointer, which is also what a hlist_head is: a type
 * must be named to read it by a load. */
static __always_inline struct file *file_of_fd(u32 fd)
{
	struct task_struct *task = UNTRUSTED(struct task_struct, bpf_get_current_task_btf());
	struct fdtable *fdt = task->files->fdt;

	if (fd >= fdt->max_fds)
		return NULL;
	return (struct file *)READ(struct hlist_head, fdt->fd + fd, first);
}

#endif
