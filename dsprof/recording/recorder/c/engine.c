/* `DeepSpeedEngineHook` for engines that it knows: phases, micro-steps and ends of steps. */

#include "hot.h"

typedef struct { /* how far one engine is in its training; all wrappers of the hook share it */
    PyObject_HEAD
    long long number, micro_step;
    char had_backward, in_step, stepped, is_described;
    PyObject *backward; /* begun by `_backward_prologue`, or None */
    PyObject *schedule; /* of a pipeline */
} EngineProgress;

enum held {
    ENGINES,   /* identity -> (weakref, EngineProgress) */
    PHASE,     /* its name */
    FIND_SITE, /* returns the number of the caller's call site */
    COUNT,     /* counts an optimizer step: engine, micro-steps */
    REF,       /* weakref to the engine of the last call, */
    STATE,     /* and the EngineProgress of that engine */
};
enum number { METHOD };
enum method { FORWARD, BACKWARD, STEP, PROLOGUE, EPILOGUE, MODEL_STEP };

/* Return the state of a call's engine, borrowed. NULL without an error: Python has to find it. */
static EngineProgress *find_engine(Wrapper *self, const Given *given)
{
    if (given->count == 0)
        return NULL;
    PyObject **held = self->held, *engine = given->args[0];
    if (held[REF] != NULL && PyWeakref_GetObject(held[REF]) == engine)
        return (EngineProgress *)held[STATE];
    PyObject *key = PyLong_FromVoidPtr(engine);
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(held[ENGINES], key);
    Py_XDECREF(key);
    if (known == NULL || PyWeakref_GetObject(PyTuple_GetItem(known, 0)) != engine)
        return NULL;
    PyObject *old_ref = held[REF], *old_state = held[STATE];
    Py_INCREF(held[REF] = PyTuple_GetItem(known, 0));
    Py_INCREF(held[STATE] = PyTuple_GetItem(known, 1));
    Py_XDECREF(old_ref);
    Py_XDECREF(old_state);
    return (EngineProgress *)held[STATE];
}

/* Say whether Python has to take a call: it describes a model, or asks for earlier steps. */
static int is_rare(const Wrapper *self, const EngineProgress *engine)
{
    return (self->numbers[METHOD] == FORWARD && !engine->is_described) ||
           (self->numbers[METHOD] == STEP && self->hot->step < 1);
}

static void end_micro_step(Hot *hot, EngineProgress *engine)
{
    engine->had_backward = 0;
    if (!engine->in_step) {
        engine->micro_step++;
        count_micro_step(hot);
    }
}

/* Begin the phase of a method. NULL without an error: the engine is in that phase already. */
static Span *enter(Wrapper *self, const EngineProgress *engine, int has_site)
{
    long long site = 0;
    int is_in = is_in_phase(self->hot, self->held[PHASE], engine->number);
    if (is_in)
        return NULL;
    if (has_site) {
        PyObject *found = PyObject_CallFunctionObjArgs(self->held[FIND_SITE], NULL);
        site = found == NULL ? -1 : PyLong_AsLongLong(found);
        Py_XDECREF(found);
        if (PyErr_Occurred())
            return NULL;
    }
    return enter_phase(self->hot, self->held[PHASE], engine->number, engine->micro_step, site);
}

/* End the phase that `_backward_prologue` began, if it is open. */
static int close_backward(Hot *hot, EngineProgress *engine)
{
    PyObject *begun = engine->backward;
    if (begun == Py_None)
        return 0;
    engine->backward = held(Py_None);
    int failed = leave_phase(hot, begun);
    Py_DECREF(begun);
    return failed;
}

/* Do what comes before the method; return the phase that ends with it. NULL: none, or an error. */
static Span *begin(Wrapper *self, EngineProgress *engine, PyObject *object)
{
    long long method = self->numbers[METHOD];
    if (method == EPILOGUE || method == MODEL_STEP)
        return NULL;
    int is_backward = method == BACKWARD || method == PROLOGUE;
    if (is_backward) {
        if (is_in_phase(self->hot, self->held[PHASE], engine->number))
            return NULL;
        if (engine->had_backward) /* why: see `_begin` in Python */
            end_micro_step(self->hot, engine);
        engine->had_backward = 1;
    } else if (close_backward(self->hot, engine) < 0) /* open if backward raised */
        return NULL;
    if (method == FORWARD && engine->had_backward) { /* why: see `_begin` in Python */
        int is_training = is_true(object, NAME("training"));
        if (is_training < 0)
            return NULL;
        if (is_training)
            end_micro_step(self->hot, engine);
    }
    Span *begun = enter(self, engine, is_backward);
    if (method == STEP && !PyErr_Occurred()) {
        engine->in_step = 1;
        engine->stepped = 0;
    }
    if (method == PROLOGUE && begun != NULL) { /* it ends with `_backward_epilogue` */
        PyObject *old = engine->backward;
        engine->backward = (PyObject *)begun;
        Py_DECREF(old);
        return NULL;
    }
    return begun;
}

/* Count an optimizer step. */
static int count_step(Wrapper *self, EngineProgress *engine)
{
    long long micro_steps = engine->micro_step + 1;
    engine->micro_step = engine->had_backward = 0;
    PyObject *done =
        PyObject_CallFunction(self->held[COUNT], "LL", (long long)engine->number, micro_steps);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Do what comes after the method, also if it raised: then it took no step. */
static int end(Wrapper *self, EngineProgress *engine, Span *begun, int has_raised)
{
    long long method = self->numbers[METHOD];
    if (method == MODEL_STEP && has_raised)
        return 0;
    if (method == EPILOGUE)
        return close_backward(self->hot, engine);
    if (method == STEP)
        engine->in_step = 0;
    if (method == MODEL_STEP)
        engine->stepped = 1;
    if (begun != NULL && leave_phase(self->hot, (PyObject *)begun) < 0)
        return -1;
    if ((method == STEP && engine->stepped) || (method == MODEL_STEP && !engine->in_step))
        return count_step(self, engine);
    if (method == STEP)
        end_micro_step(self->hot, engine);
    return 0;
}

/* forward(engine, ...), backward, step, _backward_prologue, _backward_epilogue, _take_model_step */
PyObject *call_engine(Wrapper *self, const Given *given)
{
    EngineProgress *engine = is_live(self) ? find_engine(self, given) : NULL;
    if (engine == NULL || is_rare(self, engine)) {
        if (PyErr_Occurred() && give_up(self) < 0)
            return NULL;
        return pass_on(self->python, given);
    }
    Py_INCREF((PyObject *)engine);
    Span *begun = begin(self, engine, given->args[0]);
    PyObject *result = NULL;
    if (!PyErr_Occurred()) {
        result = pass_on(self->original, given);
        Raised raised = put_aside();
        int has_failed = end(self, engine, begun, result == NULL) < 0;
        result = finish(self, result, raised, has_failed);
    } else if (give_up(self) == 0)
        result = pass_on(self->original, given);
    Py_XDECREF((PyObject *)begun);
    Py_DECREF((PyObject *)engine);
    return result;
}

/* (number, schedule) */
static int engine_init(EngineProgress *self, PyObject *args, PyObject *kwargs)
{
    PyObject *schedule, *old_backward = self->backward, *old_schedule = self->schedule;
    if (!PyArg_ParseTuple(args, "LO", &self->number, &schedule))
        return -1;
    self->backward = held(Py_None);
    self->schedule = held(schedule);
    Py_XDECREF(old_backward);
    Py_XDECREF(old_schedule);
    return 0;
}

static void engine_dealloc(EngineProgress *self)
{
    Py_CLEAR(self->backward);
    Py_CLEAR(self->schedule);
    free_of_heap_type((PyObject *)self);
}

#define NUMBER(name) {#name, T_LONGLONG, offsetof(EngineProgress, name), 0, NULL}
#define FLAG(name) {#name, T_BOOL, offsetof(EngineProgress, name), 0, NULL}
#define OBJECT(name) {#name, T_OBJECT, offsetof(EngineProgress, name), 0, NULL}
static PyMemberDef engine_members[] = {
    NUMBER(number), NUMBER(micro_step),  FLAG(had_backward), FLAG(in_step),
    FLAG(stepped),  FLAG(is_described), OBJECT(backward),   OBJECT(schedule),
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot engine_slots[] = {
    {Py_tp_init, engine_init},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_members, engine_members},
    {Py_tp_doc, "How far one engine is in its training."},
    {0, NULL},
};
static PyType_Spec engine_spec = {"dsprof.recording.recorder._hot.EngineProgress",
                                  sizeof(EngineProgress), 0, Py_TPFLAGS_DEFAULT, engine_slots};

int add_engine(PyObject *module)
{
    return add_type(module, "EngineProgress", &engine_spec) ? 0 : -1;
}
