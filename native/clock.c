// SPDX-License-Identifier: Apache-2.0
/* The step clock: the step word, the times of phases, and closed steps. */
#include "fast_path.h"

#include <string.h>
#include <time.h>

#define LAST_STEP (1LL << 62)
#define HEAD 8 /* numbers of a ClosedStep before the times of its phases */

int64_t monotonic(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Call, with what is there of two arguments, something that may be put away meanwhile. */
PyObject *ask(PyObject *function, PyObject *one, PyObject *two)
{
	PyObject *answer;

	Py_XINCREF(function);
	answer = PyObject_CallFunctionObjArgs(function, one, two, NULL);
	Py_XDECREF(function);
	return answer;
}

/* Likewise, for an answer that nobody wants. */
int tell(PyObject *function, PyObject *one, PyObject *two)
{
	PyObject *answer = ask(function, one, two);

	Py_XDECREF(answer);
	return answer ? 0 : -1;
}

/* Call a method, of a class that derives from ours or of `closed`. */
int tell_method(PyObject *self, PyObject *name, PyObject *argument)
{
	PyObject *answer;

	Py_XINCREF(self);
	answer = PyObject_CallMethodObjArgs(self, name, argument, NULL);
	Py_XDECREF(self);
	Py_XDECREF(answer);
	return answer ? 0 : -1;
}

int is_set(PyObject *function)
{
	return function && function != Py_None;
}

/* Hide something new, or NULL, from Python's garbage collector, which then frees no circle of references
 * that it is in. What a step leaves lives until it is collected, thousands of steps later. Python takes
 * all that outlives two of its collections for growth, and then looks at everything, which stops a
 * training for 0.1 s and more. */
PyObject *untracked(PyObject *new)
{
	if (new && PyObject_GC_IsTracked(new))
		PyObject_GC_UnTrack(new);
	return new;
}

static int read_time(Marker *self, long long *now)
{
	PyObject *answer;

	if (self->now == names.monotonic_ns) {
		*now = monotonic();
		return 0;
	}
	answer = ask(self->now, NULL, NULL);
	*now = answer ? PyLong_AsLongLong(answer) : -1;
	Py_XDECREF(answer);
	return PyErr_Occurred() ? -1 : 0;
}

/* What the kernel reads is one store. */
int marker_mark(Marker *self)
{
	uint64_t value = (uint64_t)self->serial << 8 | (uint64_t)self->phase;
	PyObject *number;
	int failed;

	if (self->word) {
		__atomic_store_n(self->word, value, __ATOMIC_RELAXED);
		return 0;
	}
	number = PyLong_FromUnsignedLongLong(value);
	failed = !number || PySequence_SetItem(self->word_object, 0, number);
	Py_XDECREF(number);
	return failed ? -1 : 0;
}

static int tell_switch(Marker *self)
{
	PyObject *serial, *phase;
	int failed;

	if (!is_set(self->on_switch))
		return 0;
	serial = PyLong_FromLongLong(self->serial);
	phase = PyLong_FromLongLong(self->phase);
	failed = !serial || !phase || tell(self->on_switch, serial, phase);
	Py_XDECREF(serial);
	Py_XDECREF(phase);
	return failed ? -1 : 0;
}

int marker_switch(Marker *self, long long phase)
{
	long long now;

	if (read_time(self, &now))
		return -1;
	self->phase_ns[self->phase] += now - self->since_ns;
	self->since_ns = now;
	self->phase = phase;
	self->switches++;
	return marker_mark(self) ? -1 : tell_switch(self);
}

PyObject *marker_times(Marker *self)
{
	PyObject *list = PyList_New(self->phases);

	for (Py_ssize_t i = 0; list && i < self->phases; i++) {
		PyObject *ns = PyLong_FromLongLong(self->phase_ns[i]);

		if (!ns || PyList_SetItem(list, i, ns))
			Py_CLEAR(list);
	}
	return list;
}

/* A ClosedStep of the step that ends now, packed. */
static PyObject *closed(Marker *self, long long now)
{
	int64_t numbers[HEAD + MOST_PHASES] = {
		self->serial, self->step,	  self->epoch,	     self->start_ns,
		now,	      self->switches + 1, self->unexplained, self->phases,
	};
	PyObject *step, *totals, *whole = NULL;

	memcpy(numbers + HEAD, self->phase_ns, self->phases * sizeof(*numbers));
	step = PyBytes_FromStringAndSize((char *)numbers, (HEAD + self->phases) * sizeof(*numbers));
	if (!step || (!is_set(self->sample) && !self->merged))
		return step;
	totals = is_set(self->sample) ? ask(self->sample, NULL, NULL) : Py_BuildValue("");
	if (totals)
		whole = PyObject_CallFunctionObjArgs(names.with_more, step, totals,
						     self->merged ? self->merged : names.nothing,
						     NULL);
	Py_XDECREF(totals);
	Py_DECREF(step);
	return whole;
}

/* Begin the next step, in a phase, with one look at the time and one store for both. */
int marker_open(Marker *self, long long phase)
{
	PyObject *old, *step;
	long long now;

	if (read_time(self, &now))
		return -1;
	self->phase_ns[self->phase] += now - self->since_ns;
	step = closed(self, now);
	if (!step)
		return -1;
	old = self->previous;
	self->previous = step;
	self->state = OPENED;
	Py_XDECREF(old);
	self->start_ns = self->since_ns = now;
	self->phase = phase;
	memset(self->phase_ns, 0, sizeof(self->phase_ns));
	old = self->merged;
	self->merged = NULL;
	Py_XDECREF(old);
	self->switches = 0;
	self->unexplained = 0;
	self->explained = 1;
	self->serial++;
	return marker_mark(self) ? -1 : tell_switch(self);
}

/* What was opened is a step, so that the one before is over. */
int marker_publish(Marker *self)
{
	PyObject *step = self->previous;
	Py_ssize_t waiting;
	int failed;

	self->previous = NULL;
	if (!is_set(step)) {
		Py_XDECREF(step);
		return 0;
	}
	self->state = RUNNING;
	if (self->steps_by == BY_FETCHES)
		failed = tell_method((PyObject *)self, names.close_fetched, step);
	else
		failed = tell_method(self->closed, names.append, step);
	Py_DECREF(step);
	if (failed)
		return -1;
	if (!is_set(self->on_close))
		return 0;
	waiting = PyObject_Size(self->closed);
	if (waiting < 0)
		return -1;
	return waiting < self->may_wait ? 0 : tell(self->on_close, NULL, NULL);
}

static int push(Marker *self)
{
	if (self->depth == self->room) {
		Py_ssize_t room = self->room ? 2 * self->room : 16;
		uint8_t *outer = PyMem_Realloc(self->outer, room);

		if (!outer) {
			PyErr_NoMemory();
			return -1;
		}
		self->outer = outer;
		self->room = room;
	}
	self->outer[self->depth++] = (uint8_t)self->phase;
	return 0;
}

int marker_enter(Marker *self, long long phase)
{
	if (phase == LOADER) {
		self->unexplained++;
		self->explained = 0;
	}
	return push(self) ? -1 : marker_switch(self, phase);
}

int marker_leave(Marker *self)
{
	return self->depth ? marker_switch(self, self->outer[--self->depth]) : 0;
}

void marker_explain(Marker *self)
{
	if (!self->explained) {
		self->explained = 1;
		self->unexplained--;
	}
}

void marker_end_step(Marker *self)
{
	self->state = is_set(self->previous) ? OPENED : ENDED;
	self->ends++;
	self->unended_batches = 0;
}

int marker_begin_fetch(Marker *self, int leads)
{
	if (self->steps_by != BY_FETCHES)
		leads = 1;
	else if (leads && self->step != SETUP && !self->depth)
		marker_end_step(self);
	if (!leads || self->state != ENDED)
		return marker_enter(self, LOADER);
	if (push(self) || marker_open(self, LOADER))
		return -1;
	self->unexplained = 1;
	self->explained = 0;
	return 0;
}

/* `step` is NULL or None for the next number in turn, and `epoch` -1 for that of the step before. */
int marker_begin_batch(Marker *self, PyObject *step, long long epoch, int leads)
{
	long long number = 0;

	if (is_set(step) && (number = PyLong_AsLongLong(step)) == -1 && PyErr_Occurred())
		return -1;
	if (self->state >= ENDED && (leads || self->steps_by != BY_FETCHES)) {
		if (self->state == ENDED && marker_open(self, self->phase))
			return -1;
		if (self->step < LAST_STEP)
			self->step++;
		self->state = UNPROVEN;
		if (self->steps_by != BY_OPTIMIZER && marker_publish(self))
			return -1;
	}
	if (!self->ends)
		self->unended_batches++;
	if (is_set(step))
		self->step = number;
	if (epoch >= 0)
		self->epoch = epoch - self->epoch_shift;
	return 0;
}
