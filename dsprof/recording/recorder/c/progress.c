/* `Progress`: phases, micro-steps and steps of training. Each is one call with the interpreter lock
   held, so that neither a thread nor a signal handler comes between. */

#include "hot.h"

/* Be in another scope from now on; 0, or -1 in an error. It takes the parts, also in an error. */
static int move(Hot *hot, PyObject *step, PyObject *micro_step, PyObject *phase, PyObject *engine,
                long long site)
{
    PyObject *parts[] = {step, micro_step, phase, engine, PyLong_FromLongLong(site)};
    PyObject *values = tuple_of(5, parts);
    PyObject *scope = values == NULL ? NULL : PyObject_Call(hot->scope_type, values, NULL);
    if (scope != NULL)
        become_scope(hot, scope, parts, site);
    Py_XDECREF(scope);
    Py_XDECREF(values);
    return scope == NULL ? -1 : 0;
}

/* (phase, engine=-1, micro_step=-1, site=0) -> Phase */
static PyObject *enter(Hot *hot, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"phase", "engine", "micro_step", "site", NULL};
    long long engine = -1, micro_step = -1, site = 0, now = now_ns();
    PyObject *phase;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|LLL", names, &phase, &engine, &micro_step,
                                     &site))
        return NULL;
    long long step = PyLong_AsLongLong(hot->step);
    if (step < 0) {
        if (PyErr_Occurred())
            return NULL;
        hot->step_start_ns = now;
    }
    PyObject *number = micro_step < 0 ? held(hot->micro_step) : PyLong_FromLongLong(micro_step);
    if (move(hot, PyLong_FromLongLong(step > 0 ? step : 0), number, held(phase),
             PyLong_FromLongLong(engine), site) < 0)
        return NULL;
    PyObject *fields[] = {
        PyLong_FromLongLong(now),
        PyLong_FromLong(0), /* end_ns */
        held(hot->step),
        held(hot->micro_step),
        held(hot->engine),
        PyLong_FromLong(-1), /* stage */
        held(phase),
        thread_key(),
        held(Py_False), /* is_annotation */
        held(hot->scope),
    };
    PyObject *values = tuple_of(sizeof fields / sizeof *fields, fields);
    PyObject *entered = values == NULL ? NULL : PyObject_Call(hot->phase_type, values, NULL);
    Py_XDECREF(values);
    if (entered != NULL && PyList_Append(hot->phases, entered) < 0)
        Py_CLEAR(entered);
    return entered;
}

/* Take a phase out of the open ones: 1, or 0 if it began in a trace that has ended. */
static int close_phase(Hot *hot, PyObject *entered)
{
    for (Py_ssize_t at = PyList_Size(hot->phases) - 1; at >= 0; at--)
        if (PyList_GetItem(hot->phases, at) == entered)
            return PyList_SetSlice(hot->phases, at, at + 1, NULL) < 0 ? -1 : 1;
    return 0;
}

/* (Phase) */
static PyObject *leave(Hot *hot, PyObject *entered)
{
    if (!hot->recording)
        Py_RETURN_NONE;
    if (set_number(entered, NAME("end_ns"), now_ns()) < 0)
        return NULL;
    int closed = close_phase(hot, entered);
    if (closed == 0)
        Py_RETURN_NONE;
    if (closed < 0 || add_record(hot, entered) < 0)
        return NULL;
    Py_ssize_t open = PyList_Size(hot->phases);
    PyObject *outer = open > 0 ? PyObject_GetAttr(PyList_GetItem(hot->phases, open - 1), NAME("scope"))
                               : held(hot->outside);
    if (outer == NULL)
        return NULL;
    int64_t site;
    PyObject *phase = PyObject_GetAttr(outer, NAME("phase"));
    PyObject *engine = PyObject_GetAttr(outer, NAME("engine"));
    int failed = get_number(outer, NAME("site"), &site) < 0;
    Py_DECREF(outer);
    if (failed || phase == NULL || engine == NULL) {
        Py_XDECREF(phase);
        Py_XDECREF(engine);
        return NULL;
    }
    if (move(hot, held(hot->step), held(hot->micro_step), phase, engine, site) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *end_micro_step(Hot *hot, PyObject *unused)
{
    long long next = PyLong_AsLongLong(hot->micro_step) + 1;
    if (PyErr_Occurred() ||
        (hot->recording && move(hot, held(hot->step), PyLong_FromLongLong(next), held(hot->phase),
                                held(hot->engine), hot->site) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* () -> the step that ends, and its last micro-step */
static PyObject *next_step(Hot *hot, PyObject *unused)
{
    long long step = PyLong_AsLongLong(hot->step);
    long long micro_step = PyLong_AsLongLong(hot->micro_step);
    if (step < 0)
        step = 0;
    if (PyErr_Occurred() ||
        move(hot, PyLong_FromLongLong(step + 1), PyLong_FromLong(0), held(hot->phase),
             held(hot->engine), hot->site) < 0)
        return NULL;
    return Py_BuildValue("LL", step, micro_step);
}

PyMethodDef progress_methods[] = {
    {"enter", (PyCFunction)(void (*)(void))enter, METH_VARARGS | METH_KEYWORDS,
     "As `Progress.enter`."},
    {"leave", (PyCFunction)leave, METH_O, "As `Progress.leave`."},
    {"end_micro_step", (PyCFunction)end_micro_step, METH_NOARGS, "As `Progress.end_micro_step`."},
    {"next_step", (PyCFunction)next_step, METH_NOARGS, "As `Progress._next_step`."},
    {NULL, NULL, 0, NULL},
};
