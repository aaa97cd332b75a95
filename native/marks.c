// SPDX-License-Identifier: Apache-2.0
/* Marks of batches, for the kernel: calls of prctl that it refuses. */
#include "fast_path.h"

#include <sys/prctl.h>

#define BATCH_BEGIN 0x746f6273 /* core/abi.py */
#define BATCH_END 0x746f6274
#define BATCH_VOID 0x746f6275

#define MOST_PARTS 255
#define NOT_SIMPLE (-1) /* Python looks */

typedef struct {
	THINGS(bytes_of, *kinds)
	unsigned long worker, loader;
} TaskMarks;

void mark_batch_begin(unsigned long worker, unsigned long number, unsigned long loader,
		      unsigned long pass)
{
	prctl(BATCH_BEGIN, worker, number, loader, pass);
}

static int is_small(PyObject *part)
{
	return part == Py_None || PyLong_CheckExact(part) || PyFloat_CheckExact(part) ||
	       PyUnicode_CheckExact(part) || PyBool_Check(part);
}

/* `kinds` are types that tell it without a line of Python, but in a mode of torch
 * (`torch.set_default_device`). There may be an exception: of a sparse one, or of a signal. */
static long long own_bytes(PyObject *part, PyObject *kinds)
{
	PyObject *type = (PyObject *)Py_TYPE(part), *number;
	Py_ssize_t i, count = PyTuple_Size(kinds);
	long long bytes;

	for (i = 0; i < count && PyTuple_GetItem(kinds, i) != type; i++)
		;
	if (i == count)
		return NOT_SIMPLE;
	number = PyObject_GetAttr(part, names.nbytes);
	bytes = number ? PyLong_AsLongLong(number) : NOT_SIMPLE;
	Py_XDECREF(number);
	return bytes < 0 ? NOT_SIMPLE : bytes;
}

/* Bytes in the tensors and arrays of a batch, as most are: in lists, tuples and dictionaries. */
static long long simple_bytes(PyObject *part, PyObject *kinds, int *left)
{
	int is_list = PyList_CheckExact(part), is_dict = PyDict_CheckExact(part);
	long long total = 0, bytes = 0;
	Py_ssize_t at = 0;
	PyObject *value;

	if (--*left < 0)
		return NOT_SIMPLE;
	if (is_small(part))
		return 0;
	if (!is_list && !is_dict && !PyTuple_CheckExact(part))
		return own_bytes(part, kinds);
	for (;;) {
		if (is_dict) {
			if (!PyDict_Next(part, &at, NULL, &value))
				return total;
		} else if (at >= PyObject_Size(part)) {
			return total;
		} else {
			value = is_list ? PyList_GetItem(part, at) : PyTuple_GetItem(part, at);
			at++;
		}
		Py_INCREF(value);
		bytes = simple_bytes(value, kinds, left);
		Py_DECREF(value);
		if (bytes < 0)
			return bytes;
		total += bytes;
	}
}

static PyObject *begin(TaskMarks *self, PyObject *const *args, Py_ssize_t count)
{
	unsigned long pass, number;

	if (count != 2)
		return PyErr_Format(PyExc_TypeError, "the number of the pass and of the batch");
	pass = PyLong_AsUnsignedLongMask(args[0]);
	number = PyLong_AsUnsignedLongMask(args[1]);
	if (PyErr_Occurred())
		return NULL;
	mark_batch_begin(self->worker, number, self->loader, pass);
	Py_RETURN_NONE;
}

static PyObject *end(TaskMarks *self, PyObject *batch)
{
	int left = MOST_PARTS;
	unsigned long bytes = simple_bytes(batch, self->kinds, &left);

	if (PyErr_Occurred() && handle(names.let_signals_through))
		return NULL;
	if (bytes == (unsigned long)NOT_SIMPLE) {
		PyObject *number = ask(self->bytes_of, batch, NULL);

		bytes = number ? PyLong_AsUnsignedLongMask(number) : 0;
		Py_XDECREF(number);
	}
	if (PyErr_Occurred())
		return NULL;
	prctl(BATCH_END, bytes, 0, 0, 0);
	Py_RETURN_NONE;
}

static PyObject *void_(TaskMarks *self, PyObject *unused)
{
	prctl(BATCH_VOID, 0, 0, 0, 0);
	Py_RETURN_NONE;
}

static int init(TaskMarks *self, PyObject *args, PyObject *named)
{
	PyObject *bytes_of, *kinds;

	if (!PyArg_ParseTuple(args, "kkOO!", &self->worker, &self->loader, &bytes_of, &PyTuple_Type,
			      &kinds))
		return -1;
	Py_INCREF(bytes_of);
	Py_INCREF(kinds);
	clear((PyObject *)self);
	self->bytes_of = bytes_of;
	self->kinds = kinds;
	return 0;
}

static PyMethodDef methods[] = {
	METHOD("begin", begin, METH_FASTCALL),
	METHOD("end", end, METH_O),
	METHOD("void", void_, METH_NOARGS),
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_init, init },
	{ Py_tp_methods, methods },
	ENDING,
	{ 0 },
};

static PyType_Spec spec = SPEC("TaskMarks", TaskMarks, slots);

int add_marks(PyObject *module)
{
	return add_type(module, &spec) ? 0 : -1;
}
