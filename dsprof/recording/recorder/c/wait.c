/* `WorkHook` for a wait on the host. */

#include "hot.h"

enum held { WAITED /* InFlight.waited */ };

/* Return the entry of a Work that was seen to be complete, borrowed. */
static PyObject *completed(Hot *hot, PyObject *key, PyObject *work)
{
    PyObject *entry = PyDict_GetItemWithError(hot->completed, key);
    int is_known = entry != NULL && PyWeakref_GetObject(PyTuple_GetItem(entry, 0)) == work;
    return is_known ? entry : NULL;
}

/* Take what was waited for out of the tables; NULL without an error: Python has to look for it. */
static Call *awaited(Hot *hot, PyObject *work)
{
    Call *call = NULL;
    if (PyDict_Size(hot->blocking) != 0)
        return NULL;
    if (hot->work == work) {
        call = (Call *)hot->call;
        hot->work = hot->call = NULL;
        Py_DECREF(work); /* its caller has it, too */
        return call;
    }
    if (settle(hot) < 0)
        return NULL;
    PyObject *key = PyLong_FromVoidPtr(work);
    if (key == NULL)
        return NULL;
    PyObject *table = hot->works, *entry = PyDict_GetItemWithError(table, key);
    if (entry == NULL && !PyErr_Occurred()) {
        table = hot->completed;
        entry = completed(hot, key, work);
    }
    if (entry != NULL && Py_TYPE(PyTuple_GetItem(entry, 1)) == call_type) {
        call = (Call *)held(PyTuple_GetItem(entry, 1));
        if (PyDict_DelItem(table, key) < 0)
            Py_CLEAR(call);
    }
    Py_DECREF(key);
    return call;
}

static int note(Wrapper *self, PyObject *work, int64_t start_ns, int64_t end_ns)
{
    Hot *hot = self->hot;
    Call *call = awaited(hot, work);
    if (call == NULL) {
        if (PyErr_Occurred())
            return -1;
        PyObject *noted = PyObject_CallFunction(self->held[WAITED], "OLLO", work,
                                                (long long)start_ns, (long long)end_ns, Py_True);
        Py_XDECREF(noted);
        return noted == NULL ? -1 : 0;
    }
    if (call->done_ns == 0)
        call->done_ns = end_ns;
    if (call->pending_ns)
        tell_done(hot, call->id, call->done_ns);
    call->wait_ns = start_ns;
    call->waited_ns = end_ns;
    call->blocked_ns = end_ns - (call->is_async ? start_ns : call->issue_ns);
    call->waits = 1;
    int failed = add_record(hot, (PyObject *)call);
    Py_DECREF(call);
    return failed;
}

PyObject *call_wait(Wrapper *self, const Given *given)
{
    if (!is_live(self) || self->hot->device != Py_None || given->count < 1)
        return pass_on(self->python, given);
    int64_t start_ns = now_ns();
    PyObject *result = pass_on(self->original, given);
    int64_t end_ns = now_ns();
    PyObject *work = given->args[0];
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
