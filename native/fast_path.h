// SPDX-License-Identifier: Apache-2.0
/* The fast path of a step, in C: what src/trainobs/steps/fast_path_python.py does, which is the
 * reference and says what each of it means. Everything runs with the interpreter's lock held. What
 * is rare is a method of the Python class that derives from one of these, and is called from here.
 * An int that is returned is -1 after an exception, and else 0.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#define LOADER 1       /* Phase.LOADER */
#define SETUP (-1)     /* the step before the first */
#define MOST_PHASES 64 /* those of `Phase`, and those with a name of the user's */

/* The states of a step clock, whose transitions src/trainobs/steps/states.py tells. */
enum steps_by {
	BY_MARKS,
	BY_FETCHES,
	BY_OPTIMIZER
};
enum step_state {
	RUNNING,
	UNPROVEN,
	ENDED, /* from here on no batch is there */
	OPENED
};

/* Every object begins like this: Python objects that it refers to, MOST_THINGS at most. */
#define MOST_THINGS 10
#define THINGS(...)                            \
	PyObject_HEAD union {                  \
		PyObject *things[MOST_THINGS]; \
		struct {                       \
			PyObject *__VA_ARGS__; \
		};                             \
	};

typedef struct {
	THINGS(closed, *fetches, *merged, *now, *on_close, *on_switch, *previous, *sample,
	       *word_object, *pin)
	uint64_t *word; /* where the kernel reads; NULL: word_object is a list */
	int64_t phase_ns[MOST_PHASES];
	Py_ssize_t phases;
	uint8_t *outer; /* phases that were entered and not left */
	Py_ssize_t depth, room;
	long long serial, step, epoch, epoch_shift, start_ns, since_ns, switches, unexplained;
	long long unended_batches, may_wait, phase;
	long long ends;
	enum steps_by steps_by;
	enum step_state state;
	char delivering, other_loaders, explained;
} Marker;

/* What is looked up once, as the module is imported. */
struct names {
	PyObject *append, *ask_first, *close_fetched, *end, *leader, *look, *look_at, *mark_first,
		*nbytes, *note, *tell;
	PyObject *nothing; /* the empty tuple */
	PyObject *monotonic_ns, *c_uint64, *addressof, *with_more, *method_type,
		*let_signals_through;
	PyTypeObject *marker, *fetch_listener, *pass_tracker;
};
extern struct names names;

int is_set(PyObject *thing);
int64_t monotonic(void);
PyObject *ask(PyObject *function, PyObject *one, PyObject *two);
int tell(PyObject *function, PyObject *one, PyObject *two);
int tell_method(PyObject *self, PyObject *name, PyObject *argument);
PyObject *none(int failed);
PyObject *untracked(PyObject *new);

PyObject *marker_times(Marker *self);
int marker_mark(Marker *self);
int marker_switch(Marker *self, long long phase);
int marker_open(Marker *self, long long phase);
int marker_publish(Marker *self);
int marker_enter(Marker *self, long long phase);
int marker_leave(Marker *self);
void marker_explain(Marker *self);
void marker_end_step(Marker *self);
int marker_begin_fetch(Marker *self, int leads);
int marker_begin_batch(Marker *self, PyObject *step, long long epoch, int leads);

PyObject *pass_tracker_ask(PyObject *self, PyObject *watches);
int pass_tracker_got(PyObject *self, PyObject *listeners, PyObject *iterator, PyObject *batch);
void mark_batch_begin(unsigned long worker, unsigned long number, unsigned long loader,
		      unsigned long pass);

/* What was handled before an exception is. */
struct handled {
	PyObject *kind, *error, *trace;
};
void begin_handling(struct handled *before);
void end_handling(struct handled *before);
int handle(PyObject *function);

PyTypeObject *add_type(PyObject *module, PyType_Spec *spec);
int add_loader_types(PyObject *module);
int add_callback_context(PyObject *module);
int add_marks(PyObject *module);
int add_watched_next(PyObject *module);

/* Entries of the tables by which Python knows a type. */
#define METHOD(name, function, how) { name, (PyCFunction)(void (*)(void))function, how, NULL }
#define MEMBER(type, name, kind, field) { name, kind, offsetof(type, field), 0, NULL }

/* What all types have: how the garbage collector goes through an object, and how it ends. */
int traverse(PyObject *self, visitproc visit, void *arg);
int clear(PyObject *self);
void dealloc(PyObject *self);
#define ENDING                                                \
	{ Py_tp_traverse, traverse }, { Py_tp_clear, clear }, \
	{                                                     \
		Py_tp_dealloc, dealloc                        \
	}
#define SPEC(type_name, type, type_slots)                                      \
	{                                                                      \
		"trainobs.steps._fast_path." type_name,                        \
		sizeof(type),                                                  \
		0,                                                             \
		Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, \
		type_slots,                                                    \
	}
