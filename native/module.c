// SPDX-License-Identifier: Apache-2.0
/* The step clock as Python sees it, and the module. */
#include "fast_path.h"

struct names names;

typedef struct {
	THINGS(first)
} Object;

int traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	for (int i = 0; i < MOST_THINGS; i++)
		Py_VISIT(((Object *)self)->things[i]);
	return 0;
}

int clear(PyObject *self)
{
	for (int i = 0; i < MOST_THINGS; i++)
		Py_CLEAR(((Object *)self)->things[i]);
	return 0;
}

void dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	PyObject_GC_UnTrack(self);
	clear(self);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

PyObject *none(int failed)
{
	if (failed)
		return NULL;
	Py_RETURN_NONE;
}

/* The number of a phase; -1 after an exception. */
static long long phase_of(Marker *self, PyObject *number)
{
	long long phase = PyLong_AsLongLong(number);

	if ((phase < 0 || phase >= self->phases) && !PyErr_Occurred())
		PyErr_SetString(PyExc_IndexError, "no such phase");
	return PyErr_Occurred() ? -1 : phase;
}

static PyObject *enter(Marker *self, PyObject *number)
{
	long long phase = phase_of(self, number);

	return none(phase < 0 || marker_enter(self, phase));
}

static PyObject *leave(Marker *self, PyObject *unused)
{
	return none(marker_leave(self));
}

static PyObject *explain(Marker *self, PyObject *unused)
{
	marker_explain(self);
	Py_RETURN_NONE;
}

static PyObject *doubt(Marker *self, PyObject *unused)
{
	self->unexplained++;
	Py_RETURN_NONE;
}

static PyObject *begin_fetch(Marker *self, PyObject *const *args, Py_ssize_t count)
{
	int leads = count ? PyObject_IsTrue(args[0]) : 1;

	return none(leads < 0 || marker_begin_fetch(self, leads));
}

static PyObject *begin_batch(Marker *self, PyObject *const *args, Py_ssize_t count)
{
	PyObject *step = count > 0 ? args[0] : NULL;
	long long epoch = count > 1 && args[1] != Py_None ? PyLong_AsLongLong(args[1]) : -1;
	int leads = count > 2 ? PyObject_IsTrue(args[2]) : 1;

	return none(PyErr_Occurred() || marker_begin_batch(self, step, epoch, leads));
}

static PyObject *begin_step(Marker *self, PyObject *const *args, Py_ssize_t count)
{
	if (self->steps_by == BY_FETCHES && tell_method((PyObject *)self, names.mark_first, NULL))
		return NULL;
	return begin_batch(self, args, count);
}

static PyObject *end_step(Marker *self, PyObject *unused)
{
	marker_end_step(self);
	Py_RETURN_NONE;
}

/* Parts of these, of which Python makes what is rare. */

static PyObject *open_(Marker *self, PyObject *number)
{
	long long phase = phase_of(self, number);

	return none(phase < 0 || marker_open(self, phase));
}

static PyObject *switch_(Marker *self, PyObject *number)
{
	long long phase = phase_of(self, number);

	return none(phase < 0 || marker_switch(self, phase));
}

static PyObject *publish(Marker *self, PyObject *unused)
{
	return none(marker_publish(self));
}

static PyObject *mark(Marker *self, PyObject *unused)
{
	return none(marker_mark(self));
}

static PyMethodDef marker_methods[] = {
	METHOD("enter", enter, METH_O),
	METHOD("leave", leave, METH_NOARGS),
	METHOD("explain", explain, METH_NOARGS),
	METHOD("doubt", doubt, METH_NOARGS),
	METHOD("begin_fetch", begin_fetch, METH_FASTCALL),
	METHOD("end_fetch", leave, METH_NOARGS),
	METHOD("begin_batch", begin_batch, METH_FASTCALL),
	METHOD("begin_step", begin_step, METH_FASTCALL),
	METHOD("end_step", end_step, METH_NOARGS),
	METHOD("_open", open_, METH_O),
	METHOD("_switch", switch_, METH_O),
	METHOD("_publish", publish, METH_NOARGS),
	METHOD("_mark", mark, METH_NOARGS),
	{ 0 },
};

#define NUMBER(name) MEMBER(Marker, #name, T_LONGLONG, name)
#define OWN_NUMBER(name) MEMBER(Marker, "_" #name, T_LONGLONG, name)
#define STATE(python_name, name) MEMBER(Marker, python_name, T_INT, name)
#define FLAG(name) MEMBER(Marker, #name, T_BOOL, name)
#define OWN_FLAG(name) MEMBER(Marker, "_" #name, T_BOOL, name)
#define THING(name) MEMBER(Marker, #name, T_OBJECT, name)
#define OWN_THING(name) MEMBER(Marker, "_" #name, T_OBJECT, name)

static PyMemberDef marker_members[] = {
	NUMBER(serial),
	NUMBER(step),
	NUMBER(epoch),
	NUMBER(epoch_shift),
	NUMBER(unended_batches),
	NUMBER(may_wait),
	STATE("steps_by", steps_by),
	STATE("_state", state),
	{ "phase", T_LONGLONG, offsetof(Marker, phase), READONLY, NULL },
	OWN_NUMBER(start_ns),
	OWN_NUMBER(since_ns),
	OWN_NUMBER(switches),
	OWN_NUMBER(unexplained),
	OWN_NUMBER(ends),
	FLAG(delivering),
	FLAG(other_loaders),
	OWN_FLAG(explained),
	THING(closed),
	THING(fetches),
	THING(on_switch),
	OWN_THING(merged),
	OWN_THING(now),
	OWN_THING(on_close),
	OWN_THING(previous),
	OWN_THING(sample),
	{ 0 },
};

static PyObject *get_in_phase(Marker *self, void *unused)
{
	return PyBool_FromLong(self->depth > 0);
}

static PyObject *get_phase_ns(Marker *self, void *unused)
{
	return marker_times(self);
}

static int set_phase_ns(Marker *self, PyObject *list, void *unused)
{
	Py_ssize_t count = list ? PySequence_Size(list) : 0;

	if (count < 1 || count > MOST_PHASES) {
		PyErr_Format(PyExc_ValueError, "%zd phases, of 1 to %d", count, MOST_PHASES);
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *ns = PySequence_GetItem(list, i);

		self->phase_ns[i] = ns ? PyLong_AsLongLong(ns) : 0;
		Py_XDECREF(ns);
		if (PyErr_Occurred())
			return -1;
	}
	self->phases = count;
	return 0;
}

static PyObject *get_word(Marker *self, void *unused)
{
	PyObject *word = self->word_object ? self->word_object : Py_None;

	Py_INCREF(word);
	return word;
}

/* Memory, of which the address is kept, or a list. */
static int set_word(Marker *self, PyObject *word, void *unused)
{
	PyObject *old = self->word_object, *old_pin = self->pin, *pin = NULL, *number = NULL;
	uint64_t *address = NULL;

	if (word && !PyList_Check(word)) {
		pin = PyObject_CallMethod(names.c_uint64, "from_buffer", "(O)", word);
		number = pin ? ask(names.addressof, pin, NULL) : NULL;
		address = number ? PyLong_AsVoidPtr(number) : NULL;
		Py_XDECREF(number);
		if (!address) {
			Py_XDECREF(pin);
			return -1;
		}
	}
	Py_XINCREF(word);
	self->word_object = word;
	self->pin = pin;
	self->word = address;
	Py_XDECREF(old_pin);
	Py_XDECREF(old);
	return 0;
}

static PyGetSetDef marker_getset[] = {
	{ "in_phase", (getter)get_in_phase, NULL, NULL, NULL },
	{ "_phase_ns", (getter)get_phase_ns, (setter)set_phase_ns, NULL, NULL },
	{ "_word", (getter)get_word, (setter)set_word, NULL, NULL },
	{ 0 },
};

static int marker_clear(Marker *self)
{
	self->word = NULL; /* nothing keeps it mapped any more */
	return clear((PyObject *)self);
}

static void marker_dealloc(Marker *self)
{
	PyMem_Free(self->outer);
	dealloc((PyObject *)self);
}

static PyType_Slot marker_slots[] = {
	{ Py_tp_methods, marker_methods },
	{ Py_tp_members, marker_members },
	{ Py_tp_getset, marker_getset },
	{ Py_tp_traverse, traverse },
	{ Py_tp_clear, marker_clear },
	{ Py_tp_dealloc, marker_dealloc },
	{ 0 },
};

static PyType_Spec marker_spec = SPEC("Marker", Marker, marker_slots);

PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
	PyObject *type = PyType_FromSpec(spec);

	if (type && PyModule_AddType(module, (PyTypeObject *)type))
		Py_CLEAR(type);
	return (PyTypeObject *)type;
}

/* An attribute of a module that is imported for it. */
static PyObject *from(const char *module_name, const char *name)
{
	PyObject *module = PyImport_ImportModule(module_name);
	PyObject *found = module ? PyObject_GetAttrString(module, name) : NULL;

	Py_XDECREF(module);
	return found;
}

static int look_up(void)
{
	static const struct {
		PyObject **place;
		const char *name;
	} strings[] = {
		{ &names.append, "append" },
		{ &names.ask_first, "_ask_first" },
		{ &names.close_fetched, "_close_fetched" },
		{ &names.end, "end" },
		{ &names.leader, "leader" },
		{ &names.look, "_look" },
		{ &names.look_at, "_look_at" },
		{ &names.mark_first, "_mark_first" },
		{ &names.nbytes, "nbytes" },
		{ &names.note, "_note" },
		{ &names.tell, "_tell" },
	};

	for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++)
		if (!(*strings[i].place = PyUnicode_InternFromString(strings[i].name)))
			return -1;
	names.nothing = PyTuple_New(0);
	names.monotonic_ns = from("time", "monotonic_ns");
	names.c_uint64 = from("ctypes", "c_uint64");
	names.addressof = from("ctypes", "addressof");
	names.method_type = from("types", "MethodType");
	names.with_more = from("trainobs.steps.closed_step", "with_more");
	names.let_signals_through = from("trainobs.core.signals", "let_signals_through");
	return PyErr_Occurred() ? -1 : 0;
}

static PyObject *untrack(PyObject *module, PyObject *thing)
{
	Py_INCREF(thing);
	return untracked(thing);
}

static PyMethodDef functions[] = {
	METHOD("untracked", untrack, METH_O),
	{ 0 },
};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "trainobs.steps._fast_path",
	.m_doc = "What nearly every step does; see trainobs.steps.fast_path_python.",
	.m_size = -1,
	.m_methods = functions,
};

PyMODINIT_FUNC PyInit__fast_path(void)
{
	PyObject *module = PyModule_Create(&definition);

	if (module && (look_up() || !(names.marker = add_type(module, &marker_spec)) ||
		       add_loader_types(module) || add_callback_context(module) ||
		       add_marks(module) || add_watched_next(module)))
		Py_CLEAR(module);
	return module;
}
