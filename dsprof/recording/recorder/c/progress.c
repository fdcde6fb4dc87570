/* `Progress`: phases, micro-steps and steps of training. Each is one call with the interpreter lock
   held, so that neither a thread nor a signal handler comes between. */

#include "hot.h"

enum own { STAGE, SITE_OF_PHASE }; /* of a phase; the stage is set from outside, too */
enum own_of_step { TAKEN_BEFORE };

static const Field phase_fields[] = {
    SPAN_TIMES, SPAN_STEP, SPAN_ENGINE, SPAN_NUMBER("stage", own[STAGE], -1),
    FIELD(Span, AN_OBJECT, "", phase, 0), SPAN_THREAD,
};

static PyObject *name_of(const Span *span) { return span->phase; }

static const Kind phase_span = KIND("phase", phase_record, phase_fields, name_of);

/* Say whether an engine is in a phase; -1 in an error. */
int is_in_phase(const Hot *hot, PyObject *phase, long long engine)
{
    if (engine != hot->engine)
        return 0;
    int is = phase == hot->phase || PyUnicode_Compare(phase, hot->phase) == 0;
    return PyErr_Occurred() ? -1 : is;
}

/* (phase, engine) */
static PyObject *is_in(Hot *hot, PyObject *args)
{
    long long engine;
    PyObject *phase;
    if (!PyArg_ParseTuple(args, "UL", &phase, &engine))
        return NULL;
    int is = is_in_phase(hot, phase, engine);
    return is < 0 ? NULL : PyBool_FromLong(is);
}

/* Begin a phase; returns what ends it, NULL in an error. Micro-step -1 is the last one. */
Span *enter_phase(Hot *hot, PyObject *phase, long long engine, long long micro_step, long long site)
{
    long long now = now_ns();
    if (hot->step < 0)
        hot->step_start_ns = now;
    const long long numbers[] = {hot->step > 0 ? hot->step : 0,
                                 micro_step < 0 ? hot->micro_step : micro_step, engine, site};
    move_scope(hot, phase, numbers);
    Span *entered = new_span(hot, &phase_span);
    if (entered == NULL)
        return NULL;
    entered->start_ns = now;
    entered->own[STAGE] = -1;
    entered->own[SITE_OF_PHASE] = site;
    if (PyList_Append(hot->phases, (PyObject *)entered) < 0) {
        Py_DECREF((PyObject *)entered);
        return NULL;
    }
    return entered;
}

/* (phase, engine=-1, micro_step=-1, site=0) -> what `leave` wants */
static PyObject *enter(Hot *hot, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"phase", "engine", "micro_step", "site", NULL};
    long long engine = -1, micro_step = -1, site = 0;
    PyObject *phase;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|LLL", names, &phase, &engine, &micro_step,
                                     &site))
        return NULL;
    return (PyObject *)enter_phase(hot, phase, engine, micro_step, site);
}

/* Take a phase out of the open ones: 1, or 0 if it began in a trace that has ended. */
static int close_phase(Hot *hot, PyObject *entered)
{
    for (Py_ssize_t at = PyList_Size(hot->phases) - 1; at >= 0; at--)
        if (PyList_GetItem(hot->phases, at) == entered)
            return PyList_SetSlice(hot->phases, at, at + 1, NULL) < 0 ? -1 : 1;
    return 0;
}

/* End a phase: what `enter_phase` gave. */
int leave_phase(Hot *hot, PyObject *entered)
{
    int closed = hot->recording && Py_TYPE(entered) == span_type ? close_phase(hot, entered) : 0;
    if (closed == 0)
        return 0;
    ((Span *)entered)->end_ns = now_ns();
    if (closed < 0 || add_record(hot, entered) < 0)
        return -1;
    Py_ssize_t open = PyList_Size(hot->phases);
    const Span *outer = open > 0 ? (Span *)PyList_GetItem(hot->phases, open - 1) : NULL;
    const long long numbers[] = {hot->step, hot->micro_step, outer == NULL ? -1 : outer->engine,
                                 outer == NULL ? 0 : outer->own[SITE_OF_PHASE]};
    move_scope(hot, outer == NULL ? no_text : outer->phase, numbers);
    return 0;
}

/* (what `enter` gave) */
static PyObject *leave(Hot *hot, PyObject *entered)
{
    if (leave_phase(hot, entered) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Count a micro-step that ended without an optimizer step. */
void count_micro_step(Hot *hot)
{
    const long long numbers[] = {hot->step, hot->micro_step + 1, hot->engine, hot->site};
    if (hot->recording)
        move_scope(hot, hot->phase, numbers);
}

static PyObject *end_micro_step(Hot *hot, PyObject *unused)
{
    count_micro_step(hot);
    Py_RETURN_NONE;
}

static const Field step_fields[] = {
    SPAN_NUMBER("step", step, EACH), SPAN_TIMES, SPAN_NUMBER("micro_steps", micro_step, 0),
    SPAN_WORD("source", text), SPAN_ENGINE, SPAN_NUMBER("taken_before", own[TAKEN_BEFORE], -1),
};
static const Kind step_span = KIND("step", step_record, step_fields, NULL);

/* (source, engine, micro_steps, taken_before) -> the step that has ended */
static PyObject *next_step(Hot *hot, PyObject *args)
{
    PyObject *source;
    long long engine, micro_steps, taken_before, now = now_ns();
    if (!PyArg_ParseTuple(args, "ULLL", &source, &engine, &micro_steps, &taken_before))
        return NULL;
    Span *ended = new_span(hot, &step_span);
    if (ended == NULL)
        return NULL;
    ended->step = hot->step > 0 ? hot->step : 0;
    ended->start_ns = hot->step_start_ns;
    ended->end_ns = hot->step_start_ns = now;
    ended->micro_step = micro_steps ? micro_steps : hot->micro_step + 1;
    ended->text = held(source);
    ended->engine = engine;
    ended->own[TAKEN_BEFORE] = taken_before;
    const long long numbers[] = {ended->step + 1, 0, hot->engine, hot->site};
    move_scope(hot, hot->phase, numbers);
    int failed = add_record(hot, (PyObject *)ended);
    PyObject *step = failed ? NULL : PyLong_FromLongLong(ended->step);
    Py_DECREF((PyObject *)ended);
    return step;
}

PyMethodDef progress_methods[] = {
    {"is_in", (PyCFunction)is_in, METH_VARARGS, "As `Progress.is_in`."},
    {"enter", (PyCFunction)(void (*)(void))enter, METH_VARARGS | METH_KEYWORDS,
     "As `Progress.enter`."},
    {"leave", (PyCFunction)leave, METH_O, "As `Progress.leave`."},
    {"end_micro_step", (PyCFunction)end_micro_step, METH_NOARGS, "As `Progress.end_micro_step`."},
    {"next_step", (PyCFunction)next_step, METH_VARARGS, "As `Progress._next_step`."},
    {NULL, NULL, 0, NULL},
};
