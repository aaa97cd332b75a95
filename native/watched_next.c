// SPDX-License-Identifier: Apache-2.0
/* `__next__` of the iterators of loaders: those are told of a fetch who watch its thread. */
#include "fast_path.h"

typedef struct {
	THINGS(fetch, *told, *passes, *rare, *attributes)
} WatchedNext;

/* Found in a dictionary by a number that is given up; NULL also where there is none. */
static PyObject *by_number(PyObject *dictionary, PyObject *number)
{
	PyObject *found = number ? PyDict_GetItemWithError(dictionary, number) : NULL;

	Py_XINCREF(found);
	Py_XDECREF(number);
	return found;
}

static PyObject *tracker_of(WatchedNext *self, PyObject *iterator)
{
	PyObject *tracker = by_number(self->passes, PyLong_FromVoidPtr(iterator));

	if (!tracker && !PyErr_Occurred())
		tracker = PyObject_CallMethod(self->rare, "unseen", NULL);
	if (tracker && !PyObject_TypeCheck(tracker, names.pass_tracker)) {
		PyErr_SetString(PyExc_TypeError, "a pass is no PassTracker");
		Py_CLEAR(tracker);
	}
	return tracker;
}

/* As `except Exception: rare.fault(watches)` does. */
static int tell_fault(WatchedNext *self, PyObject *watches)
{
	struct handled before;
	PyObject *answer;

	if (!PyErr_ExceptionMatches(PyExc_Exception))
		return -1;
	begin_handling(&before);
	answer = PyObject_CallMethod(self->rare, "fault", "(O)", watches);
	end_handling(&before);
	Py_XDECREF(answer);
	return answer ? 0 : -1;
}

/* As `except BaseException as error: rare.without(..., error); raise` does. */
static void tell_without(WatchedNext *self, PyObject *tracker, PyObject *watches,
			 PyObject *listeners)
{
	struct handled before;
	PyObject *kind, *error, *trace, *answer;

	begin_handling(&before);
	PyErr_GetExcInfo(&kind, &error, &trace);
	answer = PyObject_CallMethod(self->rare, "without", "(OOOO)", tracker, watches, listeners,
				     error);
	end_handling(&before);
	if (answer) {
		PyErr_Restore(kind, error, trace);
		Py_DECREF(answer);
		return;
	}
	Py_XDECREF(kind);
	Py_XDECREF(error);
	Py_XDECREF(trace);
}

static PyObject *fetch_told(WatchedNext *self, PyObject *args, PyObject *watches)
{
	PyObject *iterator = PyTuple_GetItem(args, 0), *tracker = tracker_of(self, iterator);
	PyObject *listeners = tracker ? pass_tracker_ask(tracker, watches) : NULL, *batch = NULL;

	if (listeners) {
		batch = PyObject_Call(self->fetch, args, NULL);
		if (!batch)
			tell_without(self, tracker, watches, listeners);
		else if (pass_tracker_got(tracker, listeners, iterator, batch) &&
			 tell_fault(self, watches))
			Py_CLEAR(batch);
	} else if (!tell_fault(self, watches)) {
		batch = PyObject_Call(self->fetch, args, NULL);
	}
	Py_XDECREF(listeners);
	Py_XDECREF(tracker);
	return batch;
}

static PyObject *call(WatchedNext *self, PyObject *args, PyObject *named)
{
	PyObject *watches, *batch;

	if (PyTuple_Size(args) != 1 || (named && PyDict_Size(named)))
		return PyObject_Call(self->fetch, args, named);
	watches = by_number(self->told, PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
	if (!watches)
		return PyErr_Occurred() ? NULL : PyObject_Call(self->fetch, args, NULL);
	batch = fetch_told(self, args, watches);
	Py_DECREF(watches);
	return batch;
}

/* A method of iterators, as a function of Python in a class is. */
static PyObject *get(PyObject *self, PyObject *iterator, PyObject *class)
{
	if (iterator && iterator != Py_None)
		return ask(names.method_type, self, iterator);
	Py_INCREF(self);
	return self;
}

/* Python names it in a copy or in a pickle, as it does a function. */
static PyObject *reduce(PyObject *self, PyObject *unused)
{
	return PyObject_GetAttrString(self, "__qualname__");
}

/* Nothing of it is ever missing, so nobody can get one by `__new__` alone. */
static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *named)
{
	PyObject *fetch, *told, *passes, *rare;
	WatchedNext *self;

	if (!PyArg_ParseTuple(args, "OO!O!O", &fetch, &PyDict_Type, &told, &PyDict_Type, &passes,
			      &rare))
		return NULL;
	self = (WatchedNext *)PyType_GenericAlloc(type, 0);
	if (!self)
		return NULL;
	self->fetch = fetch;
	self->told = told;
	self->passes = passes;
	self->rare = rare;
	for (int i = 0; i < 4; i++)
		Py_INCREF(self->things[i]);
	return (PyObject *)self;
}

static PyMethodDef methods[] = {
	METHOD("__reduce__", reduce, METH_NOARGS),
	{ 0 },
};

static PyMemberDef members[] = {
	{ "__dictoffset__", T_PYSSIZET, offsetof(WatchedNext, attributes), READONLY, NULL },
	{ 0 },
};

/* So that functools.wraps can name it. */
static PyGetSetDef getset[] = {
	{ "__dict__", PyObject_GenericGetDict, NULL, NULL, NULL },
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, make },
	{ Py_tp_call, call },
	{ Py_tp_descr_get, get },
	{ Py_tp_methods, methods },
	{ Py_tp_members, members },
	{ Py_tp_getset, getset },
	ENDING,
	{ 0 },
};

static PyType_Spec spec = {
	"trainobs.steps._fast_path.watched_next",
	sizeof(WatchedNext),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
	slots,
};

int add_watched_next(PyObject *module)
{
	return add_type(module, &spec) ? 0 : -1;
}
