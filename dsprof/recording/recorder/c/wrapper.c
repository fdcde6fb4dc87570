/* What stands on a class for one of its functions. It is called as the function is, and has its
   attributes. On the class it is in an `instancemethod`, as the methods of pybind11 are: that binds
   it, and torch.compile breaks the graph at it, while it would call a type of ours without `self`. */

#include "hot.h"

#include <string.h>

/* With vectorcall neither a tuple of arguments is made nor a dict. The stable ABI has it from Python
   3.12 on, as it is since 3.9. But `PyObject_Vectorcall` is no function before 3.11. */
#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#define PY_VECTORCALL_ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))
PyAPI_FUNC(PyObject *) PyVectorcall_Call(PyObject *, PyObject *, PyObject *);
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
#endif
#pragma weak PyObject_Vectorcall

static Called call_idle;

static const struct {
    const char *name;
    Called *called;
} kinds[] = {
    {"collective", call_collective},   {"wait", call_wait},
    {"request", call_request},         {"flush", call_flush},
    {"epilogue", call_epilogue},       {"fetch start", call_fetch_start},
    {"fetch stop", call_fetch_stop},   {"release", call_release},
    {"engine", call_engine},           {"idle", call_idle},
};

static Called *called_for(const char *name)
{
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++)
        if (strcmp(kinds[at].name, name) == 0)
            return kinds[at].called;
    PyErr_Format(PyExc_ValueError, "there is no kind of wrapper named %s", name);
    return NULL;
}

/* -- what a call gives ------------------------------------------------------------------------- */

int is_plain(const Given *given) { return given->names == NULL || PyTuple_Size(given->names) == 0; }

PyObject *positions_of(const Given *given)
{
    PyObject *positions = PyTuple_New(given->count);
    for (Py_ssize_t at = 0; positions != NULL && at < given->count; at++)
        PyTuple_SetItem(positions, at, held(given->args[at]));
    return positions;
}

PyObject *names_of(const Given *given)
{
    PyObject *named = PyDict_New();
    Py_ssize_t count = given->names == NULL ? 0 : PyTuple_Size(given->names);
    for (Py_ssize_t at = 0; named != NULL && at < count; at++)
        if (PyDict_SetItem(named, PyTuple_GetItem(given->names, at),
                           given->args[given->count + at]) < 0)
            Py_CLEAR(named);
    return named;
}

/* Call a function as the wrapper was called. */
PyObject *pass_on(PyObject *function, const Given *given)
{
    if (PyObject_Vectorcall != NULL)
        return PyObject_Vectorcall(function, given->args, given->count, given->names);
    PyObject *positions = positions_of(given), *result = NULL;
    PyObject *named = is_plain(given) ? NULL : names_of(given);
    if (positions != NULL && !PyErr_Occurred())
        result = PyObject_Call(function, positions, named);
    Py_XDECREF(positions);
    Py_XDECREF(named);
    return result;
}

/* Of a hook that has nothing to do until it leaves all to Python. It holds nothing. */
static PyObject *call_idle(Wrapper *self, const Given *given)
{
    return pass_on(self->on->in_python ? self->python : self->original, given);
}

static PyObject *vectorcall(Wrapper *self, PyObject *const *args, size_t count, PyObject *names)
{
    const Given given = {args, (Py_ssize_t)(count & ~PY_VECTORCALL_ARGUMENTS_OFFSET), names};
    return self->called(self, &given);
}

/* -- the wrapper ------------------------------------------------------------------------------- */

static int wrapper_traverse(Wrapper *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->hot);
    Py_VISIT(self->on);
    Py_VISIT(self->original);
    Py_VISIT(self->python);
    Py_VISIT(self->fail);
    for (int at = 0; at < MOST_HELD; at++)
        Py_VISIT(self->held[at]);
    return 0;
}

/* What a hook holds may lead back here; the functions stay, for whoever still calls. */
static int wrapper_clear(Wrapper *self)
{
    self->is_cleared = 1; /* first: what is freed may call */
    Py_CLEAR(self->fail);
    for (int at = 0; at < MOST_HELD; at++)
        Py_CLEAR(self->held[at]);
    return 0;
}

static void wrapper_dealloc(Wrapper *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    wrapper_clear(self);
    Py_CLEAR(self->hot);
    Py_CLEAR(self->on);
    Py_CLEAR(self->original);
    Py_CLEAR(self->python);
    free_of_heap_type((PyObject *)self);
}

/* (kind, hot, switch, original, python, fail, held, numbers) */
static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const char *kind;
    PyObject *hot, *on, *original, *python, *fail, *held, *numbers;
    if (!PyArg_ParseTuple(args, "sO!O!OOOO!O!", &kind, hot_type, &hot, switch_type, &on, &original,
                          &python, &fail, &PyTuple_Type, &held, &PyTuple_Type, &numbers))
        return NULL;
    Called *called = called_for(kind);
    if (called == NULL)
        return NULL;
    for (PyObject **at = &((Hot *)hot)->device; at != &((Hot *)hot)->state; at++)
        if (*at == NULL) {
            PyErr_SetString(PyExc_ValueError, "the state that hooks share is not complete");
            return NULL;
        }
    Wrapper *self = (Wrapper *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = vectorcall;
    self->called = called;
    Py_INCREF(hot), self->hot = (Hot *)hot;
    Py_INCREF(on), self->on = (Switch *)on;
    Py_INCREF(original), self->original = original;
    Py_INCREF(python), self->python = python;
    Py_INCREF(fail), self->fail = fail;
    for (Py_ssize_t at = 0; at < PyTuple_Size(held) && at < MOST_HELD; at++) {
        self->held[at] = PyTuple_GetItem(held, at);
        Py_INCREF(self->held[at]);
    }
    for (Py_ssize_t at = 0; at < PyTuple_Size(numbers) && at < MOST_NUMBERS; at++)
        self->numbers[at] = PyLong_AsLongLong(PyTuple_GetItem(numbers, at));
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* -- as a function is -------------------------------------------------------------------------- */

static PyObject *wrapper_copy(PyObject *self, PyObject *unused) { return held(self); }

/* A function is pickled by its name. */
static PyObject *wrapper_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttr(((Wrapper *)self)->original, NAME("__qualname__"));
}

static PyMethodDef wrapper_methods[] = {
    {"__copy__", wrapper_copy, METH_NOARGS, NULL},
    {"__deepcopy__", wrapper_copy, METH_O, NULL},
    {"__reduce_ex__", wrapper_reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* Of the original: name, module, signature, documentation, and what others have set. */
static PyObject *wrapper_getattr(Wrapper *self, PyObject *name)
{
    static const char *const own[] = {
        "__class__", "__call__", "__get__", "__copy__", "__deepcopy__", "__reduce_ex__",
    };
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0)
        return held(self->original);
    for (size_t at = 0; at < sizeof own / sizeof *own; at++)
        if (PyUnicode_CompareWithASCIIString(name, own[at]) == 0)
            return PyObject_GenericGetAttr((PyObject *)self, name);
    return PyObject_GetAttr(self->original, name);
}

static int wrapper_setattr(Wrapper *self, PyObject *name, PyObject *value)
{
    return PyObject_SetAttr(self->original, name, value);
}

static PyObject *wrapper_repr(Wrapper *self)
{
    return PyUnicode_FromFormat("<dsprof around %R>", self->original);
}

/* -- what kinds of wrapper share --------------------------------------------------------------- */

/* Whether anything is to be done beside the call, and is what C can do. */
int is_live(const Wrapper *self)
{
    return self->hot->recording && !self->on->broken && !self->on->in_python && !self->is_cleared;
}

/* Return the exception that is raised, which is raised no more. */
PyObject *take_error(void)
{
    Raised raised = put_aside();
    PyErr_NormalizeException(&raised.type, &raised.error, &raised.traceback);
    if (raised.traceback != NULL)
        PyException_SetTraceback(raised.error, raised.traceback);
    Py_XDECREF(raised.type);
    Py_XDECREF(raised.traceback);
    return raised.error;
}

/* Note an inner failure, as `Hook.fail` does; -1: what a signal handler of the user raised goes on. */
int give_up(Wrapper *self)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *error = take_error();
    PyObject *noted = PyObject_CallFunctionObjArgs(self->fail, error, NULL);
    Py_XDECREF(error);
    Py_XDECREF(noted);
    return noted == NULL ? -1 : 0;
}

/* What a call has raised must be out of the way of what we do after it. */
Raised put_aside(void)
{
    Raised raised;
    PyErr_Fetch(&raised.type, &raised.error, &raised.traceback);
    return raised;
}

/* Return what a call has, or raise what it has, unless a signal handler of the user has raised in
   what we did after it, which `failed` then. */
PyObject *finish(Wrapper *self, PyObject *result, Raised raised, int failed)
{
    if (!failed || give_up(self) == 0) {
        PyErr_Restore(raised.type, raised.error, raised.traceback);
        return result;
    }
    Py_XDECREF(result);
    Py_XDECREF(raised.type);
    Py_XDECREF(raised.error);
    Py_XDECREF(raised.traceback);
    return NULL;
}

int add_wrapper(PyObject *module)
{
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(Wrapper, vectorcall), READONLY, NULL},
        {"__weaklistoffset__", T_PYSSIZET, offsetof(Wrapper, weakrefs), READONLY, NULL},
        {NULL, 0, 0, 0, NULL},
    };
    PyType_Slot slots[] = {
        {Py_tp_call, PyVectorcall_Call},
        {Py_tp_members, members},
        {Py_tp_new, wrapper_new},
        {Py_tp_dealloc, wrapper_dealloc},
        {Py_tp_traverse, wrapper_traverse},
        {Py_tp_clear, wrapper_clear},
        {Py_tp_methods, wrapper_methods},
        {Py_tp_getattro, wrapper_getattr},
        {Py_tp_setattro, wrapper_setattr},
        {Py_tp_repr, wrapper_repr},
        {0, NULL},
    };
    PyType_Spec spec = {"dsprof.recording.recorder._hot.Wrapper", sizeof(Wrapper), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                        slots};
    return add_type(module, "Wrapper", &spec) == NULL ? -1 : 0;
}
