/* What stands on a class for one of its functions. It is called as the function is, and has its
   attributes. On the class it is in an `instancemethod`, as the methods of pybind11 are: that binds
   it, and torch.compile breaks the graph at it, while it would call a type of ours without `self`. */

#include "hot.h"

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
    Py_CLEAR(self->fail);
    for (int at = 0; at < MOST_HELD; at++)
        Py_CLEAR(self->held[at]);
    self->is_cleared = 1;
    return 0;
}

static void wrapper_dealloc(Wrapper *self)
{
    PyObject_GC_UnTrack(self);
    wrapper_clear(self);
    Py_CLEAR(self->hot);
    Py_CLEAR(self->on);
    Py_CLEAR(self->original);
    Py_CLEAR(self->python);
    free_of_heap_type((PyObject *)self);
}

/* (hot, switch, original, python, fail, held, numbers) */
static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *hot, *on, *original, *python, *fail, *held, *numbers;
    if (!PyArg_ParseTuple(args, "O!O!OOOO!O!", hot_type, &hot, switch_type, &on, &original, &python,
                          &fail, &PyTuple_Type, &held, &PyTuple_Type, &numbers))
        return NULL;
    for (PyObject **at = &((Hot *)hot)->device; at != &((Hot *)hot)->state; at++)
        if (*at == NULL) {
            PyErr_SetString(PyExc_ValueError, "the state that hooks share is not complete");
            return NULL;
        }
    Wrapper *self = (Wrapper *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
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

/* Of the original: name, module, signature and documentation. */
static PyObject *wrapper_getattr(Wrapper *self, PyObject *name)
{
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) {
        Py_INCREF(self->original);
        return self->original;
    }
    if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0 ||
        PyUnicode_CompareWithASCIIString(name, "__call__") == 0)
        return PyObject_GenericGetAttr((PyObject *)self, name);
    return PyObject_GetAttr(self->original, name);
}

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

static PyObject *wrapper_repr(Wrapper *self)
{
    return PyUnicode_FromFormat("<dsprof around %R>", self->original);
}

int add_kind(PyObject *module, const char *name, const char *full_name, ternaryfunc call)
{
    PyType_Slot slots[] = {
        {Py_tp_call, call},
        {Py_tp_new, wrapper_new},
        {Py_tp_dealloc, wrapper_dealloc},
        {Py_tp_traverse, wrapper_traverse},
        {Py_tp_clear, wrapper_clear},
        {Py_tp_getattro, wrapper_getattr},
        {Py_tp_repr, wrapper_repr},
        {0, NULL},
    };
    PyType_Spec spec = {full_name, sizeof(Wrapper), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                        slots};
    PyObject *type = PyType_FromSpec(&spec);
    return type == NULL ? -1 : PyModule_AddObject(module, name, type);
}
