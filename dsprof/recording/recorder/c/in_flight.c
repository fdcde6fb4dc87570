/* `InFlight.poll`: which collectives in flight are complete by now. */

#include "hot.h"

enum { LOOKED_AT = 32, POLLED = 4, FOREIGN_AFTER_NS = 1000000000 };

/* A Work that was complete is gone, and nobody has waited for it: (weakref). `self` is (state,
   identity of the Work). */
static PyObject *gone(PyObject *self, PyObject *unused)
{
    Hot *hot = (Hot *)PyTuple_GetItem(self, 0);
    if (hot->keep == NULL) /* in a cycle that is being collected */
        Py_RETURN_NONE;
    PyObject *entry = popped(hot->completed, PyTuple_GetItem(self, 1));
    if (entry != NULL) {
        PyObject *kept = PyObject_CallFunctionObjArgs(hot->keep, PyTuple_GetItem(entry, 1), NULL);
        Py_XDECREF(kept);
        Py_DECREF(entry);
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef gone_method = {"gone", gone, METH_O, NULL};

/* Return (weakref to a Work, record), for `completed`. */
static PyObject *let_go(Hot *hot, PyObject *key, PyObject *work, PyObject *record)
{
    PyObject *self = PyTuple_Pack(2, (PyObject *)hot, key);
    PyObject *callback = self == NULL ? NULL : PyCFunction_NewEx(&gone_method, self, NULL);
    PyObject *ref = callback == NULL ? NULL : PyWeakref_NewRef(work, callback);
    PyObject *entry = ref == NULL ? NULL : PyTuple_Pack(2, ref, record);
    Py_XDECREF(self);
    Py_XDECREF(callback);
    Py_XDECREF(ref);
    return entry;
}

/* Move a collective that is complete from the table of those in flight to that of the others. */
static int complete(Hot *hot, PyObject *key, PyObject *work, Call *call, int64_t now)
{
    PyObject *entry = let_go(hot, key, work, (PyObject *)call);
    if (entry == NULL)
        return -1;
    PyObject *taken = popped(hot->works, key);
    int failed = PyErr_Occurred() != NULL;
    if (taken != NULL) { /* else it has just been waited for in another thread */
        PyObject *known = popped(hot->completed, key); /* a library's one Work for all */
        failed = PyDict_SetItem(hot->completed, key, entry) < 0 ||
                 (known != NULL && add_record(hot, PyTuple_GetItem(known, 1)) < 0);
        if (call->done_ns == 0)
            call->done_ns = now;
        tell_done(hot, call->id, call->done_ns);
        Py_XDECREF(known);
        Py_DECREF(taken);
    }
    Py_DECREF(entry);
    return failed ? -1 : 0;
}

/* Look at one: 1: it is complete, 0: it is pending, -1: error. */
static int look(Hot *hot, PyObject *key, PyObject *entry, int64_t now)
{
    PyObject *work = PyTuple_GetItem(entry, 0);
    Call *call = (Call *)PyTuple_GetItem(entry, 1);
    if (call->thread != PyThread_get_thread_ident() && now - call->issue_ns <= FOREIGN_AFTER_NS)
        return 0;
    PyObject *done = PyObject_CallMethodObjArgs(work, NAME("is_completed"), NULL);
    if (done == NULL)
        return -1;
    int is_done = PyObject_IsTrue(done);
    Py_DECREF(done);
    if (is_done > 0)
        return complete(hot, key, work, call, now) < 0 ? -1 : 1;
    call->pending_ns = now;
    return is_done;
}

/* Hand over a call that another one replaces in a table. */
static int displace(Hot *hot, PyObject *record)
{
    int64_t id;
    if (get_number(record, NAME("id"), &id) < 0)
        return -1;
    tell_done(hot, id, UNFOLLOWED);
    return add_record(hot, record);
}

/* Enter a call into the table of those in flight; with `is_last`, the one in the slot. */
static int enter(Hot *hot, PyObject *work, PyObject *call, int is_last)
{
    Py_INCREF(work);
    Py_INCREF(call);
    PyObject *key = PyLong_FromVoidPtr(work), *entry = PyTuple_Pack(2, work, call);
    int failed = key == NULL || entry == NULL;
    /* Making these may collect garbage, whose finalizers may wait for the call in the slot. */
    int is_there = !is_last || hot->work == work;
    if (!failed && is_there) {
        PyObject *known = popped(hot->works, key);
        failed = PyErr_Occurred() || PyDict_SetItem(hot->works, key, entry) < 0;
        if (known != NULL) {
            failed = failed || displace(hot, PyTuple_GetItem(known, 1)) < 0;
            Py_DECREF(known);
        }
    }
    if (is_last && hot->work == work) {
        hot->work = hot->call = NULL;
        Py_DECREF(work);
        Py_DECREF(call);
    }
    Py_XDECREF(key);
    Py_XDECREF(entry);
    Py_DECREF(work);
    Py_DECREF(call);
    return failed ? -1 : 0;
}

/* Enter the call that was issued last, unless that was waited for. Whoever looks into the table
   does so first. */
int settle(Hot *hot)
{
    return hot->work == NULL ? 0 : enter(hot, hot->work, hot->call, 1);
}

/* Keep a call in flight where its wait will find it. Most calls are waited for before another is
   issued; they never enter the table, whose memory is in no cache. */
int follow(Hot *hot, PyObject *work, Call *call)
{
    if (settle(hot) < 0)
        return -1;
    if (PyDict_Size(hot->works) != 0)
        return enter(hot, work, (PyObject *)call, 0);
    hot->work = held(work);
    hot->call = held((PyObject *)call);
    return 0;
}

/* Note which collectives in flight are complete by now. 1: Python has to, for it has recorded some;
   -1: error, also where a Work cannot answer. */
int poll_works(Hot *hot)
{
    PyObject *keys[LOOKED_AT], *entries[LOOKED_AT], *key, *entry;
    Py_ssize_t position = 0;
    int count = 0, pending = POLLED, looked = 1, is_ours = 1;
    while (count < LOOKED_AT && PyDict_Next(hot->works, &position, &key, &entry)) {
        is_ours = is_ours && Py_TYPE(PyTuple_GetItem(entry, 1)) == call_type;
        keys[count] = held(key);
        entries[count++] = held(entry);
    }
    int64_t now = now_ns();
    if (!is_ours)
        pending = 0;
    for (int at = 0; at < count; at++) {
        if (looked >= 0 && pending > 0 && (looked = look(hot, keys[at], entries[at], now)) == 0)
            pending--;
        Py_DECREF(keys[at]);
        Py_DECREF(entries[at]);
    }
    return looked < 0 ? -1 : !is_ours;
}
