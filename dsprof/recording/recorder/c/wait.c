/* `WorkHook` for a wait on the host. */

#include "hot.h"

enum held { WAITED /* InFlight.waited */ };

/* Take the entry of a Work that was seen to be complete. */
static PyObject *completed(Hot *hot, PyObject *key, PyObject *work)
{
    PyObject *entry = PyDict_GetItemWithError(hot->completed, key);
    if (entry == NULL || PyWeakref_GetObject(PyTuple_GetItem(entry, 0)) != work)
        return NULL;
    return popped(hot->completed, key);
}

/* Take the record of what was waited for out of the tables; NULL without an error: not found. */
static PyObject *awaited(Hot *hot, PyObject *work)
{
    PyObject *record = NULL, *key;
    Py_ssize_t blocking = PyDict_Size(hot->blocking);
    if (blocking < 0)
        return NULL;
    if (blocking > 0) {
        if ((key = thread_key()) == NULL)
            return NULL;
        record = popped(hot->blocking, key);
        Py_DECREF(key);
    }
    if (record != NULL || PyErr_Occurred() || (key = PyLong_FromVoidPtr(work)) == NULL)
        return record;
    PyObject *entry = popped(hot->works, key);
    if (entry == NULL && !PyErr_Occurred())
        entry = completed(hot, key, work);
    Py_DECREF(key);
    if (entry == NULL)
        return NULL;
    record = PyTuple_GetItem(entry, 1);
    Py_XINCREF(record);
    Py_DECREF(entry);
    return record;
}

static int note(Wrapper *self, PyObject *work, int64_t start_ns, int64_t end_ns)
{
    Hot *hot = self->hot;
    PyObject *record = awaited(hot, work);
    if (record == NULL) {
        if (PyErr_Occurred())
            return -1;
        PyObject *noted = PyObject_CallFunction(self->held[WAITED], "OLLO", work,
                                                (long long)start_ns, (long long)end_ns, Py_True);
        Py_XDECREF(noted);
        return noted == NULL ? -1 : 0;
    }
    int64_t id, done_ns, pending_ns;
    int failed = get_number(record, NAME("done_ns"), &done_ns) < 0 ||
                 get_number(record, NAME("pending_ns"), &pending_ns) < 0 ||
                 get_number(record, NAME("id"), &id) < 0;
    if (!failed && done_ns == 0) {
        done_ns = end_ns;
        failed = set_number(record, NAME("done_ns"), done_ns) < 0;
    }
    if (!failed && pending_ns)
        tell_done(hot, id, done_ns);
    failed = failed || set_number(record, NAME("wait_ns"), start_ns) < 0 ||
             set_number(record, NAME("waited_ns"), end_ns) < 0 ||
             set_number(record, NAME("blocked_ns"), end_ns - start_ns) < 0 ||
             set_number(record, NAME("waits"), 1) < 0 || add_record(hot, record) < 0;
    Py_DECREF(record);
    return failed ? -1 : 0;
}

PyObject *call_wait(Wrapper *self, PyObject *args, PyObject *kwargs)
{
    if (!is_live(self) || self->hot->device != Py_None || PyTuple_Size(args) < 1)
        return PyObject_Call(self->python, args, kwargs);
    int64_t start_ns = now_ns();
    PyObject *result = PyObject_Call(self->original, args, kwargs);
    int64_t end_ns = now_ns();
    PyObject *work = PyTuple_GetItem(args, 0);
    if (result != NULL) {
        if (note(self, work, start_ns, end_ns) < 0 && give_up(self) < 0)
            Py_CLEAR(result);
        return result;
    }
    Raised raised = put_aside();
    PyObject *noted = PyObject_CallFunction(self->held[WAITED], "OLLO", work, (long long)start_ns,
                                            (long long)end_ns, Py_False);
    Py_XDECREF(noted);
    return finish(self, NULL, raised, noted == NULL);
}
