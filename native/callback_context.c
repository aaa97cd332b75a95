// SPDX-License-Identifier: Apache-2.0
/* The context of a stretch of time, whose two ends somebody is told of, whatever becomes of that. */
#include "fast_path.h"

typedef struct {
	THINGS(begin, *what, *end, *on_fault, *value)
} CallbackContext;

/* What is handled here; in a generator, maybe by who goes on with it. */
static void get_handled(struct handled *now)
{
	PyErr_GetExcInfo(&now->kind, &now->error, &now->trace);
}

static void forget(struct handled *one)
{
	Py_CLEAR(one->kind);
	Py_CLEAR(one->error);
	Py_CLEAR(one->trace);
}

/* From here on an exception is handled, as in an `except` clause; the one before is kept. Not one of
 * who goes on with a generator: put back, it would be handled in the generator from then on. */
void begin_handling(struct handled *before)
{
	PyObject *kind, *error, *trace;
	struct handled outer;

	PyErr_Fetch(&kind, &error, &trace);
	PyErr_NormalizeException(&kind, &error, &trace);
	if (trace)
		PyException_SetTraceback(error, trace);
	get_handled(before);
	PyErr_SetExcInfo(NULL, NULL, NULL);
	get_handled(&outer);
	if (outer.error == before->error)
		forget(before);
	forget(&outer);
	PyErr_SetExcInfo(kind, error, trace);
}

void end_handling(struct handled *before)
{
	PyErr_SetExcInfo(before->kind, before->error, before->trace);
}

/* As `except Exception: function()` does. */
int handle(PyObject *function)
{
	struct handled before;
	int failed;

	if (!PyErr_ExceptionMatches(PyExc_Exception))
		return -1;
	begin_handling(&before);
	failed = tell(function, NULL, NULL);
	end_handling(&before);
	return failed;
}

static PyObject *enter(CallbackContext *self, PyObject *unused)
{
	PyObject *value = self->value ? self->value : Py_None;

	if (is_set(self->begin) && tell(self->begin, self->what, NULL) && handle(self->on_fault))
		return NULL;
	Py_INCREF(value);
	return value;
}

static PyObject *leave(CallbackContext *self, PyObject *const *args, Py_ssize_t count)
{
	return none(is_set(self->end) && tell(self->end, NULL, NULL) && handle(self->on_fault));
}

static int init(CallbackContext *self, PyObject *args, PyObject *named)
{
	Py_ssize_t count = PyTuple_Size(args);

	if (count < 4 || count > 5) {
		PyErr_SetString(PyExc_TypeError, "begin, what, end, on_fault and perhaps a value");
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *old = self->things[i], *new = PyTuple_GetItem(args, i);

		Py_INCREF(new);
		self->things[i] = new;
		Py_XDECREF(old);
	}
	return 0;
}

static PyMethodDef methods[] = {
	METHOD("__enter__", enter, METH_NOARGS),
	METHOD("__exit__", leave, METH_FASTCALL),
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_init, init },
	{ Py_tp_methods, methods },
	ENDING,
	{ 0 },
};

static PyType_Spec spec = SPEC("CallbackContext", CallbackContext, slots);

int add_callback_context(PyObject *module)
{
	return add_type(module, &spec) ? 0 : -1;
}
