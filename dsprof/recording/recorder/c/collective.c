/* `ProcessGroupHook` for the usual collective: of plain tensors on the host, from Python. */

#include "hot.h"

enum held {
    OP,          /* its name */
    STATE_OF,    /* Groups.state */
    DTYPES,      /* dtype -> (name, bytes of an element) */
    KINDS,       /* name of a dtype -> kind, for the live state */
    KNOWN_SITES, /* Sites.known, */
    LOOK_ABOVE,  /* and Sites.look_above */
    POLL,        /* InFlight.poll, */
    CHECK,       /* and what raises an error again if a signal handler of the user raised it */
    WITH_OP,     /* types that name a reduce op; None: this operation has none */
    OP_NAMES,    /* of reduce ops, by their hash, */
    NAME_OF,     /* and what names the others */
    NOTED_BELOW, /* thread -> when a kernel last recorded for it */
    PLAIN_TENSOR,
    PLAIN_GROUP,
    STATE,       /* the GroupState of the last call */
    GROUP,       /* its weakref to the group */
    COUNT,       /* its counter of collectives */
};
enum number {
    SIZED_AT,     /* the argument that has the tensors, or the one tensor */
    TAKES_LIST,   /* whether it is a list */
    TIMED_EVERY,  /* so many calls one is timed, */
    FIRST_TIMED,  /* the first time at this one */
};

typedef struct {
    PyObject *dtype; /* borrowed, and only compared */
    int64_t nbytes, elements;
    Py_ssize_t tensors;
} Sizes;

/* An attribute of plain tensors, by the descriptor on their class. `PyObject_GetAttr` would look for
   that each time: of what recording takes in training, a sixth. */
typedef struct {
    PyObject *descriptor;
    descrgetfunc get;
} Attribute;

static PyObject *value_of(Attribute *attribute, PyObject *name, PyObject *tensor)
{
    PyTypeObject *type = Py_TYPE(tensor);
    if (attribute->get == NULL) {
        PyObject *descriptor = PyObject_GetAttr((PyObject *)type, name);
        if (descriptor == NULL)
            return NULL;
        attribute->get = (descrgetfunc)PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get);
        if (attribute->get == NULL) { /* somebody has put a value there */
            Py_DECREF(descriptor);
            return PyObject_GetAttr(tensor, name);
        }
        attribute->descriptor = descriptor;
    }
    return attribute->get(attribute->descriptor, tensor, (PyObject *)type);
}

/* Know a dtype: the one of the last call, or another. 1: known, 0: it has no name, -1: error. */
static int see_dtype(Wrapper *self, PyObject *dtype)
{
    if (self->seen.collective.dtype == dtype)
        return 1;
    PyObject *known = PyDict_GetItemWithError(self->held[DTYPES], dtype);
    if (known == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *name = PyTuple_GetItem(known, 0), *kind = PyObject_GetItem(self->held[KINDS], name);
    if (kind == NULL)
        return -1;
    self->seen.collective.kind = PyLong_AsLongLong(kind);
    self->seen.collective.item_bytes = PyLong_AsLongLong(PyTuple_GetItem(known, 1));
    self->seen.collective.dtype_name = name;
    self->seen.collective.dtype = dtype; /* `DTYPES` keeps it */
    Py_DECREF(kind);
    return 1;
}

/* Add a tensor; 1: it is a plain one, dense and on the host; 0: it is not; -1: error. */
static int measure(Wrapper *self, PyObject *tensor, Sizes *sizes)
{
    static Attribute of_host, of_dtype, of_nbytes;
    if ((PyObject *)Py_TYPE(tensor) != self->held[PLAIN_TENSOR])
        return 0;
    PyObject *is_cpu = value_of(&of_host, NAME("is_cpu"), tensor);
    Py_XDECREF(is_cpu);
    if (is_cpu != Py_True)
        return is_cpu == NULL ? -1 : 0;
    PyObject *dtype = value_of(&of_dtype, NAME("dtype"), tensor);
    int is_known = dtype == NULL ? -1 : see_dtype(self, dtype);
    Py_XDECREF(dtype);
    if (is_known <= 0)
        return is_known;
    long long item_bytes = self->seen.collective.item_bytes; /* another thread may see another */
    PyObject *number = value_of(&of_nbytes, NAME("nbytes"), tensor);
    if (number == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
            return -1;
        PyErr_Clear(); /* a sparse tensor has none */
        return 0;
    }
    const int64_t nbytes = PyLong_AsLongLong(number);
    Py_DECREF(number);
    if (nbytes == -1 && PyErr_Occurred())
        return -1;
    sizes->dtype = dtype;
    sizes->nbytes += nbytes;
    sizes->elements += nbytes / item_bytes;
    sizes->tensors++;
    return 1;
}

/* As `measure`, of all tensors of a call. */
static int measure_all(Wrapper *self, const Given *given, Sizes *sizes)
{
    PyObject *sized = given->args[self->numbers[SIZED_AT]];
    if (!self->numbers[TAKES_LIST])
        return measure(self, sized, sizes);
    if (!PyList_CheckExact(sized))
        return 0;
    int is_usual = 0;
    for (Py_ssize_t at = 0; at < PyList_Size(sized); at++) {
        PyObject *tensor = held(PyList_GetItem(sized, at)); /* a mode of torch may run Python */
        is_usual = measure(self, tensor, sizes);
        Py_XDECREF(tensor);
        if (is_usual <= 0)
            break;
    }
    return is_usual;
}

static int replace(PyObject **held, PyObject *owned)
{
    PyObject *old = *held;
    if (owned == NULL)
        return -1;
    *held = owned;
    Py_XDECREF(old);
    return 0;
}

/* Know the group of a call: that of the last one, or another. */
static int find_group(Wrapper *self, PyObject *group)
{
    PyObject **held = self->held;
    if (held[GROUP] != NULL && PyWeakref_GetObject(held[GROUP]) == group)
        return 0;
    PyObject *state = PyObject_CallFunctionObjArgs(held[STATE_OF], group, NULL);
    if (replace(&held[STATE], state) < 0)
        return -1;
    PyObject *facts = PyObject_GetAttr(state, NAME("group"));
    if (facts == NULL)
        return -1;
    int64_t id = 0;
    int failed = get_number(facts, NAME("id"), &id) < 0 ||
                 replace(&held[COUNT], PyObject_GetAttr(state, NAME("collectives"))) < 0 ||
                 replace(&held[GROUP], PyObject_GetAttr(state, NAME("ref"))) < 0;
    Py_DECREF(facts);
    self->seen.collective.group = id;
    if (failed)
        Py_CLEAR(held[GROUP]);
    return failed ? -1 : 0;
}

static int has(PyTypeObject *type, PyObject *name)
{
    PyObject *attribute = PyObject_GetAttr((PyObject *)type, name);
    if (attribute == NULL)
        PyErr_Clear();
    Py_XDECREF(attribute);
    return attribute != NULL;
}

/* Know the type of the last argument: options, a reduce op, or a tensor. */
static int see_options(Wrapper *self, PyObject *last)
{
    PyTypeObject *type = Py_TYPE(last);
    if (self->seen.collective.options == type)
        return 0;
    int names_op = self->held[WITH_OP] == Py_None
                       ? 0
                       : PySet_Contains(self->held[WITH_OP], (PyObject *)type);
    if (names_op < 0)
        return -1;
    self->seen.collective.names_op = names_op;
    self->seen.collective.has_async = has(type, NAME("asyncOp"));
    self->seen.collective.has_op = has(type, NAME("reduceOp"));
    self->seen.collective.options = type; /* only compared */
    return 0;
}

/* Note what the options of a call say: whether it is to return a Work, and the reduce op. If the
   writer read and freed them later, they would leave holes between tensors, and training would find
   memory more slowly: by about half of what all hooks take. */
static int read_options(Wrapper *self, Call *call, PyObject *last, int is_followed)
{
    int is = self->seen.collective.has_async ? is_true(last, NAME("asyncOp")) : is_followed;
    if (is < 0)
        return -1;
    call->is_async = is;
    if (!self->seen.collective.names_op) {
        call->reduce_op = held(no_text);
        return 0;
    }
    PyObject *names = self->held[OP_NAMES];
    PyObject *op =
        self->seen.collective.has_op ? PyObject_GetAttr(last, NAME("reduceOp")) : held(last);
    Py_hash_t number = op == NULL ? -1 : PyObject_Hash(op);
    if (number >= 0 && number < PyTuple_Size(names))
        call->reduce_op = held(PyTuple_GetItem(names, number));
    else if (!PyErr_Occurred())
        call->reduce_op = PyObject_CallFunctionObjArgs(self->held[NAME_OF], op, NULL);
    Py_XDECREF(op);
    return call->reduce_op == NULL ? -1 : 0;
}

static int is_usual(Wrapper *self, const Given *given, Sizes *sizes)
{
    const Hot *hot = self->hot;
    if (!is_live(self) || hot->device != Py_None || PyTuple_Size(hot->followers) != 0 ||
        !is_plain(given) || given->count <= self->numbers[SIZED_AT])
        return 0;
    if ((PyObject *)Py_TYPE(given->args[0]) != self->held[PLAIN_GROUP])
        return 0;
    return measure_all(self, given, sizes);
}

/* Whether a kernel in the dispatcher has recorded the call: another thread may have brought kernels
   in meanwhile. */
static int was_noted_below(Wrapper *self, int64_t issue_ns)
{
    if (!self->on->in_python)
        return 0;
    PyObject *thread = thread_key();
    PyObject *noted =
        thread == NULL ? NULL : PyDict_GetItemWithError(self->held[NOTED_BELOW], thread);
    Py_XDECREF(thread);
    return noted == NULL ? (PyErr_Occurred() ? -1 : 0) : PyLong_AsLongLong(noted) >= issue_ns;
}

/* Note what is complete by now. Python does, where a Work cannot answer. */
static int poll(Wrapper *self)
{
    int polled = poll_works(self->hot);
    if (polled == 0)
        return 0;
    if (polled < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyObject *error = take_error();
        PyObject *checked = PyObject_CallFunctionObjArgs(self->held[CHECK], error, NULL);
        Py_XDECREF(error);
        Py_XDECREF(checked);
        if (checked == NULL)
            return -1;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(self->held[POLL], NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Find the call site. The running function of Python is the one that issues. `look_above` runs, too,
   and is called by it; for `site_above`, which has no frame, that is one more frame: hence -1. */
static int find_site(Wrapper *self, long long *site)
{
    if ((*site = current(self->hot)->site) != 0)
        return 0;
    if ((*site = site_above(self->held[KNOWN_SITES], -1)) == 0) {
        PyObject *above = PyObject_CallFunction(self->held[LOOK_ABOVE], "i", 0);
        *site = above == NULL ? -1 : PyLong_AsLongLong(above);
        Py_XDECREF(above);
    }
    if (*site == 0)
        *site = self->hot->site;
    return *site == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Number a call, and fill in what is known of it; NULL in an error. */
static Call *made(Wrapper *self, const Given *given, const Sizes *sizes, PyObject *dtype_name,
                  long long site, int is_followed)
{
    const Hot *hot = self->hot;
    Context *context = current(hot);
    PyObject *last = given->args[given->count - 1];
    Call *call = see_options(self, last) < 0 ? NULL : new_call();
    if (call == NULL)
        return NULL;
    call->op = held(self->held[OP]);
    call->dtype = held(dtype_name);
    call->requested = held(context->requested);
    call->phase = held(hot->phase);
    call->outputs = PyTuple_New(0); /* the one that there is */
    call->group = self->seen.collective.group;
    if (read_options(self, call, last, is_followed) < 0 ||
        next_of(self->held[COUNT], &call->seq) < 0 || next_of(hot->ids, &call->id) < 0) {
        Py_DECREF(call);
        return NULL;
    }
    context->wire_ops++;
    call->nbytes = sizes->nbytes;
    call->elements = sizes->elements;
    call->tensors = sizes->tensors;
    call->request = context->request;
    call->flush = context->flush;
    call->fetch = context->fetch;
    call->coalesced = context->coalesced;
    call->site = site;
    call->step = hot->step;
    call->micro_step = hot->micro_step;
    call->engine = hot->engine;
    call->thread = PyThread_get_thread_ident();
    return call;
}

static int note(Wrapper *self, const Given *given, const Sizes *sizes, PyObject *work,
                int64_t issue_ns, int64_t return_ns)
{
    Hot *hot = self->hot;
    int failed;
    long long site;
    int noted = was_noted_below(self, issue_ns);
    if (noted)
        return noted;
    Py_ssize_t in_flight = settle(hot) < 0 ? -1 : PyDict_Size(hot->works);
    if (in_flight < 0 || (in_flight > 0 && poll(self) < 0) || find_site(self, &site) < 0)
        return -1;
    /* Only now: while the call ran, another thread may have called for another group or dtype. */
    if (find_group(self, given->args[0]) < 0 || see_dtype(self, sizes->dtype) <= 0)
        return -1;
    const long long kind = self->seen.collective.kind;
    const int is_followed = work != Py_None;
    Call *call = made(self, given, sizes, self->seen.collective.dtype_name, site, is_followed);
    if (call == NULL)
        return -1;
    call->issue_ns = issue_ns;
    call->return_ns = return_ns;
    const int64_t told[CALL_WORDS] = {
        call->id, call->seq, call->group, kind, call->nbytes, issue_ns, site, call->step,
        is_followed ? 0 : return_ns, (int64_t)call->thread,
    };
    tell_issue(hot, told);
    if (is_followed) {
        call->pending_ns = return_ns;
        failed = follow(hot, work, call);
    } else {
        call->done_ns = return_ns;
        call->blocked_ns = return_ns - issue_ns;
        failed = add_record(hot, (PyObject *)call);
    }
    Py_DECREF((PyObject *)call);
    return failed;
}

PyObject *call_collective(Wrapper *self, const Given *given)
{
    Sizes sizes = {0};
    Hot *hot = self->hot;
    int is_timed = ++hot->calls % self->numbers[TIMED_EVERY] == self->numbers[FIRST_TIMED];
    int64_t taken_ns = is_timed ? -thread_cpu_ns() : 0;
    int usual = is_usual(self, given, &sizes);
    if (usual < 0 && give_up(self) < 0)
        return NULL;
    if (usual <= 0)
        return pass_on(self->python, given);
    if (is_timed)
        taken_ns += thread_cpu_ns();
    int64_t issue_ns = now_ns();
    PyObject *work = pass_on(self->original, given);
    if (work == NULL)
        return NULL;
    int64_t return_ns = now_ns();
    if (is_timed)
        taken_ns -= thread_cpu_ns();
    if (note(self, given, &sizes, work, issue_ns, return_ns) < 0 && give_up(self) < 0)
        Py_CLEAR(work);
    if (is_timed) {
        taken_ns += thread_cpu_ns();
        hot->samples++;
        hot->sampled_ns += taken_ns;
        if (taken_ns > hot->longest_ns)
            hot->longest_ns = taken_ns;
    }
    return work;
}
