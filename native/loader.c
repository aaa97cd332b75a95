// SPDX-License-Identifier: Apache-2.0
/* What a loop gets from its loaders: which batch, when, and what the clock is told of it. */
#include "fast_path.h"

#define MAIN_WORKER 0xffffffffUL
#define NO_WORKER -1 /* steps/fast_path_python.py */

typedef struct {
	THINGS(clock, *fetched, *name)
	long long epoch, begin_ns;
	long leads;
	char loop, found, unmatched, opens, opened, aside;
} FetchListener;

typedef struct {
	THINGS(marks, *listeners, *watches)
	long long loader, workers, passes, number, due;
	char exact, until_one_ends;
} PassTracker;

/* Whether another pass has taken over. */
static int look_who_leads(FetchListener *self, Marker *clock)
{
	PyObject *leader = PyObject_GetAttr(clock->fetches, names.leader);

	self->leads = leader == self->name;
	Py_XDECREF(leader);
	return leader ? 0 : -1;
}

/* NULL after an exception: where it has none, or one in Python. */
static Marker *clock_of(FetchListener *self)
{
	if (self->clock && PyObject_TypeCheck(self->clock, names.marker))
		return (Marker *)self->clock;
	PyErr_SetString(PyExc_TypeError, "a fetch is told of to no clock in C");
	return NULL;
}

static int ask_for_batch(FetchListener *self)
{
	Marker *clock = clock_of(self);
	int failed = 0;

	if (!clock)
		return -1;
	if (self->found && tell_method((PyObject *)self, names.look, NULL))
		return -1;
	if (!self->loop) {
		self->opened = self->opens && !clock->depth;
		failed = self->opened && marker_begin_fetch(clock, 1);
	} else {
		if (self->leads < 0)
			failed = tell_method((PyObject *)self, names.ask_first, NULL);
		else if (!self->aside && self->leads && clock->steps_by == BY_FETCHES)
			failed = look_who_leads(self, clock);
		if (!failed)
			failed = self->aside ? marker_enter(clock, LOADER) :
					       marker_begin_fetch(clock, self->leads != 0);
	}
	self->begin_ns = monotonic();
	return failed ? -1 : 0;
}

static int got_batch(FetchListener *self)
{
	Marker *clock = clock_of(self);

	if (!clock)
		return -1;
	if (!self->loop)
		return self->opened ? marker_leave(clock) : 0;
	if (marker_leave(clock))
		return -1;
	return self->aside ? 0 : marker_begin_batch(clock, NULL, self->epoch, self->leads > 0);
}

/* Which batch it was, of whom, if that is known, and when: a `Fetch` of the ledger. */
static int note(FetchListener *self, PassTracker *at, long long number, long long end_ns,
		int waited)
{
	Marker *clock = (Marker *)self->clock;
	int delivered = (self->loop && !self->unmatched) || clock->delivering;
	long long worker = at->workers ? number % at->workers : (long long)MAIN_WORKER;
	int64_t numbers[] = {
		clock->serial,
		at->loader,
		at->passes,
		at->exact ? worker : NO_WORKER,
		at->exact && at->workers ? number / at->workers : number,
		self->begin_ns,
		end_ns,
		waited,
		delivered,
	};
	PyObject *fetch = PyByteArray_FromStringAndSize((char *)numbers, sizeof(numbers));
	int failed = !fetch || tell(self->fetched, fetch, NULL);

	Py_XDECREF(fetch);
	return failed ? -1 : 0;
}

static int answered(FetchListener *self, PassTracker *at, long long number, long long end_ns)
{
	Marker *clock = clock_of(self);
	int waited = clock && clock->phase == LOADER;

	if (!clock)
		return -1;
	if (waited && (!at->exact || clock->other_loaders))
		clock->unexplained++;
	else if (waited)
		marker_explain(clock);
	if (is_set(self->fetched) && note(self, at, number, end_ns, waited))
		return -1;
	return got_batch(self);
}

static PyObject *fetch_listener_ask(FetchListener *self, PyObject *unused)
{
	return none(ask_for_batch(self));
}

static PyObject *fetch_listener_got(FetchListener *self, PyObject *unused)
{
	return none(got_batch(self));
}

/* One of those that are told, borrowed; NULL after an exception. */
static FetchListener *listener_at(PyObject *listeners, Py_ssize_t place)
{
	PyObject *listener = PyTuple_GetItem(listeners, place);

	if (listener && !PyObject_TypeCheck(listener, names.fetch_listener)) {
		PyErr_SetString(PyExc_TypeError, "who is told is no FetchListener");
		return NULL;
	}
	return (FetchListener *)listener;
}

/* Returns who was told: a new reference. */
PyObject *pass_tracker_ask(PyObject *object, PyObject *watches)
{
	PassTracker *self = (PassTracker *)object;
	PyObject *listeners;

	if (self->watches != watches && tell_method((PyObject *)self, names.tell, watches))
		return NULL;
	listeners = self->listeners ? self->listeners : names.nothing;
	Py_INCREF(listeners);
	for (Py_ssize_t i = 0; i < PyTuple_Size(listeners); i++) {
		FetchListener *listener = listener_at(listeners, i);

		if (!listener || ask_for_batch(listener)) {
			Py_DECREF(listeners);
			return NULL;
		}
	}
	if (is_set(self->marks))
		mark_batch_begin(MAIN_WORKER, self->number, self->loader, self->passes);
	return listeners;
}

int pass_tracker_got(PyObject *object, PyObject *listeners, PyObject *iterator, PyObject *batch)
{
	PassTracker *self = (PassTracker *)object;
	long long number, end_ns;

	if (is_set(self->marks) && tell_method(self->marks, names.end, batch))
		return -1;
	if (self->until_one_ends && tell_method(object, names.look_at, iterator))
		return -1;
	number = self->number++;
	end_ns = monotonic();
	for (Py_ssize_t i = 0; i < PyTuple_Size(listeners); i++) {
		FetchListener *listener = listener_at(listeners, i);

		if (!listener || answered(listener, self, number, end_ns))
			return -1;
	}
	if (self->due && self->number >= self->due) {
		PyObject *answer =
			PyObject_CallMethodObjArgs(object, names.note, iterator, batch, NULL);

		Py_XDECREF(answer);
		return answer ? 0 : -1;
	}
	return 0;
}

static PyObject *got(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
	if (count != 3 || !PyTuple_Check(args[0]))
		return PyErr_Format(PyExc_TypeError, "who was told, the iterator and its batch");
	return none(pass_tracker_got(self, args[0], args[1], args[2]));
}

static PyMemberDef fetch_listener_members[] = {
	MEMBER(FetchListener, "clock", T_OBJECT, clock),
	MEMBER(FetchListener, "fetched", T_OBJECT, fetched),
	MEMBER(FetchListener, "_name", T_OBJECT, name),
	MEMBER(FetchListener, "epoch", T_LONGLONG, epoch),
	MEMBER(FetchListener, "begin_ns", T_LONGLONG, begin_ns),
	MEMBER(FetchListener, "leads", T_LONG, leads),
	MEMBER(FetchListener, "loop", T_BOOL, loop),
	MEMBER(FetchListener, "found", T_BOOL, found),
	MEMBER(FetchListener, "unmatched", T_BOOL, unmatched),
	MEMBER(FetchListener, "opens", T_BOOL, opens),
	MEMBER(FetchListener, "opened", T_BOOL, opened),
	MEMBER(FetchListener, "aside", T_BOOL, aside),
	{ 0 },
};

static PyMemberDef pass_tracker_members[] = {
	MEMBER(PassTracker, "marks", T_OBJECT, marks),
	MEMBER(PassTracker, "listeners", T_OBJECT, listeners),
	MEMBER(PassTracker, "watches", T_OBJECT, watches),
	MEMBER(PassTracker, "loader", T_LONGLONG, loader),
	MEMBER(PassTracker, "workers", T_LONGLONG, workers),
	MEMBER(PassTracker, "passes", T_LONGLONG, passes),
	MEMBER(PassTracker, "number", T_LONGLONG, number),
	MEMBER(PassTracker, "due", T_LONGLONG, due),
	MEMBER(PassTracker, "exact", T_BOOL, exact),
	MEMBER(PassTracker, "until_one_ends", T_BOOL, until_one_ends),
	{ 0 },
};

static PyMethodDef fetch_listener_methods[] = {
	METHOD("ask", fetch_listener_ask, METH_NOARGS),
	METHOD("got", fetch_listener_got, METH_NOARGS),
	{ 0 },
};

static PyMethodDef pass_tracker_methods[] = {
	METHOD("ask", pass_tracker_ask, METH_O),
	METHOD("got", got, METH_FASTCALL),
	{ 0 },
};

static int fetch_listener_init(FetchListener *self, PyObject *args, PyObject *named)
{
	self->leads = self->epoch = -1;
	return 0;
}

static PyType_Slot fetch_listener_slots[] = {
	{ Py_tp_init, fetch_listener_init },
	{ Py_tp_methods, fetch_listener_methods },
	{ Py_tp_members, fetch_listener_members },
	ENDING,
	{ 0 },
};

static PyType_Slot pass_tracker_slots[] = {
	{ Py_tp_methods, pass_tracker_methods },
	{ Py_tp_members, pass_tracker_members },
	ENDING,
	{ 0 },
};

static PyType_Spec fetch_listener_spec = SPEC("FetchListener", FetchListener, fetch_listener_slots);
static PyType_Spec pass_tracker_spec = SPEC("PassTracker", PassTracker, pass_tracker_slots);

int add_loader_types(PyObject *module)
{
	names.fetch_listener = add_type(module, &fetch_listener_spec);
	names.pass_tracker = add_type(module, &pass_tracker_spec);
	return names.fetch_listener && names.pass_tracker ? 0 : -1;
}
