/* `DeepSpeedCommHook`: a call into deepspeed.comm, on whose behalf a thread communicates. */

#include "hot.h"

enum held { REQUESTED, UNSEEN /* records what did not reach c10d */ };

/* Begin a request: 1, or 0 if it serves another request, -1 in an error. Takes nothing. */
static int begin(Wrapper *self, Context **outer, Context **context)
{
    Hot *hot = self->hot;
    Context *found = current(hot);
    if (found->request)
        return 0;
    long long id;
    if (next_of(hot->ids, &id) < 0)
        return -1;
    Context *made = new_context(found);
    if (made != NULL) {
        Py_INCREF(self->held[REQUESTED]);
        Py_DECREF(made->requested);
        made->requested = self->held[REQUESTED];
        made->request = id;
        made->wire_ops = 0;
    }
    if (made == NULL)
        return -1;
    Py_INCREF(found);
    if (become(hot, made) < 0) {
        Py_DECREF(found);
        Py_DECREF(made);
        return -1;
    }
    *outer = found;
    *context = made;
    return 1;
}

PyObject *call_request(Wrapper *self, const Given *given)
{
    if (!is_live(self))
        return pass_on(self->python, given);
    Context *outer, *context;
    int begun = begin(self, &outer, &context);
    if (begun <= 0) {
        if (begun < 0 && give_up(self) < 0)
            return NULL;
        return pass_on(self->original, given);
    }
    int64_t start_ns = now_ns();
    PyObject *result = pass_on(self->original, given);
    Raised raised = put_aside();
    int failed = become(self->hot, outer) < 0;
    if (!failed && result != NULL && !context->wire_ops) {
        PyObject *noted = PyObject_CallFunction(
            self->held[UNSEEN], "ONNOLL", context, positions_of(given), names_of(given), result,
            (long long)start_ns, (long long)now_ns());
        Py_XDECREF(noted);
        failed = noted == NULL;
    }
    result = finish(self, result, raised, failed);
    Py_DECREF(outer);
    Py_DECREF(context);
    return result;
}
