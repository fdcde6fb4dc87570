/* `Progress`: phases, micro-steps and steps of training. Each is one call with the interpreter lock
   held, so that neither a thread nor a signal handler comes between. */

#include "hot.h"

/* Be in another scope from now on: step, micro-step, engine, site. 0, or -1 in an error. */
static int move(Hot *hot, PyObject *phase, const long long numbers[4])
{
    PyObject *parts[] = {
        PyLong_FromLongLong(numbers[0]), PyLong_FromLongLong(numbers[1]), held(phase),
        PyLong_FromLongLong(numbers[2]), PyLong_FromLongLong(numbers[3]),
    };
    PyObject *values = tuple_of(5, parts);
    PyObject *scope = values == NULL ? NULL : PyObject_Call(hot->scope_type, values, NULL);
    if (scope != NULL)
        become_scope(hot, scope, phase, numbers);
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
    if (hot->step < 0)
        hot->step_start_ns = now;
    const long long numbers[] = {hot->step > 0 ? hot->step : 0,
                                 micro_step < 0 ? hot->micro_step : micro_step, engine, site};
    if (move(hot, phase, numbers) < 0)
        return NULL;
    PyObject *fields[] = {
        PyLong_FromLongLong(now),
        PyLong_FromLong(0), /* end_ns */
        PyLong_FromLongLong(hot->step),
        PyLong_FromLongLong(hot->micro_step),
        PyLong_FromLongLong(hot->engine),
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
    PyObject *end_ns = PyLong_FromLongLong(now_ns());
    int failed = end_ns == NULL || PyObject_SetAttr(entered, NAME("end_ns"), end_ns) < 0;
    Py_XDECREF(end_ns);
    if (failed)
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
    int64_t engine, site;
    PyObject *phase = PyObject_GetAttr(outer, NAME("phase"));
    failed = phase == NULL || get_number(outer, NAME("engine"), &engine) < 0 ||
             get_number(outer, NAME("site"), &site) < 0;
    Py_DECREF(outer);
    if (!failed) {
        const long long numbers[] = {hot->step, hot->micro_step, engine, site};
        failed = move(hot, phase, numbers) < 0;
    }
    Py_XDECREF(phase);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *end_micro_step(Hot *hot, PyObject *unused)
{
    const long long numbers[] = {hot->step, hot->micro_step + 1, hot->engine, hot->site};
    if (hot->recording && move(hot, hot->phase, numbers) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* () -> the step that ends, and its last micro-step */
static PyObject *next_step(Hot *hot, PyObject *unused)
{
    long long step = hot->step > 0 ? hot->step : 0, micro_step = hot->micro_step;
    const long long numbers[] = {step + 1, 0, hot->engine, hot->site};
    if (move(hot, hot->phase, numbers) < 0)
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
