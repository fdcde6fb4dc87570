/* `ProcessGroupHook` for the usual collective: of plain tensors on the host, from Python. */

#include "hot.h"

enum held {
    RECORD,     /* Collective */
    OP,         /* its name */
    STATE_OF,   /* Groups.state */
    DTYPES,     /* dtype -> (name, bytes of an element) */
    KINDS,      /* name of a dtype -> kind, for the live state */
    SITE_ABOVE, /* Sites.above */
    POLL,       /* InFlight.poll, */
    CHECK,      /* and what raises an error again if a signal handler of the user raised it */
    WITH_OP,    /* types that name a reduce op; None: this operation has none */
    NOTED_BELOW, /* thread -> when a kernel last recorded for it */
    PLAIN_TENSOR,
    PLAIN_GROUP,
    STATE, /* the GroupState of the last call */
    GROUP, /* its weakref to the group */
    GROUP_ID,
    COUNT, /* its counter of collectives */
};
enum number {
    SIZED_AT,     /* the argument that has the tensors, or the one tensor */
    TAKES_LIST,   /* whether it is a list */
    TIMED_EVERY,  /* so many calls one is timed, */
    FIRST_TIMED,  /* the first time at this one */
};

typedef struct {
    PyObject *dtype;          /* borrowed from `DTYPES` */
    int64_t nbytes, elements;
    Py_ssize_t tensors;
} Sizes;

/* Add a tensor; 1: it is a plain one, dense and on the host; 0: it is not; -1: error. */
static int measure(Wrapper *self, PyObject *tensor, Sizes *sizes)
{
    int64_t nbytes, item_bytes;
    if ((PyObject *)Py_TYPE(tensor) != self->held[PLAIN_TENSOR])
        return 0;
    int is_cpu = is_true(tensor, NAME("is_cpu"));
    if (is_cpu <= 0)
        return is_cpu;
    int is_sparse = is_true(tensor, NAME("is_sparse"));
    if (is_sparse)
        return is_sparse < 0 ? -1 : 0;
    PyObject *dtype = PyObject_GetAttr(tensor, NAME("dtype"));
    if (dtype == NULL)
        return -1;
    PyObject *known = PyDict_GetItemWithError(self->held[DTYPES], dtype);
    Py_DECREF(dtype);
    if (known == NULL)
        return PyErr_Occurred() ? -1 : 0;
    item_bytes = PyLong_AsLongLong(PyTuple_GetItem(known, 1));
    if (get_number(tensor, NAME("nbytes"), &nbytes) < 0)
        return -1;
    sizes->dtype = PyTuple_GetItem(known, 0);
    sizes->nbytes += nbytes;
    sizes->elements += nbytes / item_bytes;
    sizes->tensors++;
    return 1;
}

/* As `measure`, of all tensors of a call. */
static int measure_all(Wrapper *self, PyObject *args, Sizes *sizes)
{
    PyObject *sized = PyTuple_GetItem(args, self->numbers[SIZED_AT]);
    if (!self->numbers[TAKES_LIST])
        return measure(self, sized, sizes);
    if (!PyList_CheckExact(sized))
        return 0;
    int is_usual = 0;
    for (Py_ssize_t at = 0; at < PyList_Size(sized); at++)
        if ((is_usual = measure(self, PyList_GetItem(sized, at), sizes)) <= 0)
            break;
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
    int failed = replace(&held[GROUP_ID], PyObject_GetAttr(facts, NAME("id"))) < 0 ||
                 replace(&held[COUNT], PyObject_GetAttr(state, NAME("collectives"))) < 0 ||
                 replace(&held[GROUP], PyObject_GetAttr(state, NAME("ref"))) < 0;
    Py_DECREF(facts);
    return failed ? -1 : 0;
}

static int is_usual(Wrapper *self, PyObject *args, PyObject *kwargs, Sizes *sizes)
{
    const Hot *hot = self->hot;
    if (!is_live(self) || hot->device != Py_None || PyTuple_Size(hot->followers) != 0 ||
        (kwargs != NULL && PyDict_Size(kwargs) != 0) ||
        PyTuple_Size(args) <= self->numbers[SIZED_AT])
        return 0;
    PyObject *group = PyTuple_GetItem(args, 0);
    if ((PyObject *)Py_TYPE(group) != self->held[PLAIN_GROUP])
        return 0;
    return measure_all(self, args, sizes);
}

/* Whether a kernel in the dispatcher has recorded the call: another thread may have brought kernels
   in meanwhile. */
static int was_noted_below(Wrapper *self, PyObject *thread, int64_t issue_ns)
{
    if (!self->on->in_python)
        return 0;
    PyObject *noted = PyDict_GetItemWithError(self->held[NOTED_BELOW], thread);
    return noted == NULL ? (PyErr_Occurred() ? -1 : 0) : PyLong_AsLongLong(noted) >= issue_ns;
}

/* Hand over a call whose place in a table another one takes. */
static int displace(Hot *hot, PyObject *record)
{
    int64_t id;
    if (get_number(record, NAME("id"), &id) < 0)
        return -1;
    tell_done(hot, id, UNFOLLOWED);
    return add_record(hot, record);
}

/* Keep a call that is in flight where its wait will find it. */
static int follow(Hot *hot, PyObject *thread, PyObject *work, int is_async, PyObject *record)
{
    PyObject *table = is_async ? hot->works : hot->blocking, *known;
    PyObject *key = is_async ? PyLong_FromVoidPtr(work) : thread;
    PyObject *entry = is_async ? PyTuple_Pack(2, work, record) : record;
    int failed = key == NULL || entry == NULL;
    if (!failed && (known = popped(table, key)) != NULL) {
        failed = displace(hot, is_async ? PyTuple_GetItem(known, 1) : known) < 0;
        Py_DECREF(known);
    }
    failed = failed || PyErr_Occurred() || PyDict_SetItem(table, key, entry) < 0;
    if (is_async) {
        Py_XDECREF(key);
        Py_XDECREF(entry);
    }
    return failed ? -1 : 0;
}

/* Note what is complete by now. Python does, where a Work cannot answer. */
static int poll(Wrapper *self)
{
    if (poll_works(self->hot) == 0)
        return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *error = take_error();
    PyObject *done = PyObject_CallFunctionObjArgs(self->held[CHECK], error, NULL);
    Py_XDECREF(error);
    if (done != NULL) {
        Py_DECREF(done);
        done = PyObject_CallFunctionObjArgs(self->held[POLL], NULL);
    }
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Return the call site, as an object; the function that issues is the caller of this one. */
static PyObject *site_of(Wrapper *self, const Context *context)
{
    if (context->site)
        return PyLong_FromLongLong(context->site);
    PyObject *site = PyObject_CallFunction(self->held[SITE_ABOVE], "i", 0);
    if (site == NULL || PyObject_IsTrue(site))
        return site;
    Py_DECREF(site);
    return PyLong_FromLongLong(self->hot->site);
}

static int note(Wrapper *self, PyObject *args, const Sizes *sizes, PyObject *work, int64_t issue_ns,
                int64_t return_ns)
{
    Hot *hot = self->hot;
    int is_followed = work != Py_None, failed = -1;
    PyObject *thread = thread_key(), *options = PyTuple_GetItem(args, PyTuple_Size(args) - 1);
    PyObject *site = NULL, *seq = NULL, *id = NULL, *record = NULL, *is_async = NULL, *kind = NULL;
    PyObject *group_id = NULL;
    int noted = thread == NULL ? -1 : was_noted_below(self, thread, issue_ns);
    if (noted) {
        failed = noted;
        goto done;
    }
    Py_ssize_t in_flight = PyDict_Size(hot->works);
    if (in_flight < 0 || (in_flight > 0 && poll(self) < 0))
        goto done;
    Context *context = context_of(hot, thread);
    if (context == NULL || (site = site_of(self, context)) == NULL)
        goto done;
    context = context_of(hot, thread); /* looking for the site runs Python */
    /* Only now: while the call ran, another thread may have called for another group. */
    if (context == NULL || find_group(self, PyTuple_GetItem(args, 0)) < 0 ||
        (group_id = held(self->held[GROUP_ID])) == NULL ||
        (seq = next_of(self->held[COUNT])) == NULL || (id = next_of(hot->ids)) == NULL)
        goto done;
    context->wire_ops++;
    is_async = PyObject_GetAttr(options, NAME("asyncOp"));
    if (is_async == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            goto done;
        PyErr_Clear();
        is_async = PyBool_FromLong(is_followed);
    }
    int names_op = self->held[WITH_OP] == Py_None
                       ? 0
                       : PySet_Contains(self->held[WITH_OP], (PyObject *)Py_TYPE(options));
    kind = PyObject_GetItem(self->held[KINDS], sizes->dtype);
    if (names_op < 0 || kind == NULL)
        goto done;
    PyObject *fields[] = {
        held(id),
        held(group_id),
        held(seq),
        PyLong_FromLongLong(sizes->nbytes),
        PyLong_FromLongLong(sizes->elements),
        PyLong_FromLongLong(issue_ns),
        held(self->held[OP]),
        PyLong_FromSsize_t(sizes->tensors),
        held(sizes->dtype),
        held(context->requested),
        PyLong_FromLongLong(context->request),
        held(is_async),
        held(names_op ? options : Py_None),
        PyLong_FromLong(-1), /* peer */
        held(site),
        held(hot->step),
        held(hot->micro_step),
        held(hot->phase),
        held(hot->engine),
        PyLong_FromLongLong(context->flush),
        PyLong_FromLongLong(context->fetch),
        PyLong_FromLongLong(context->coalesced),
        held(thread),
        PyLong_FromLongLong(return_ns),
        PyLong_FromLong(0),                               /* stream */
        PyLong_FromLongLong(is_followed ? return_ns : 0), /* pending_ns */
        PyLong_FromLongLong(is_followed ? 0 : return_ns), /* done_ns */
    };
    PyObject *values = tuple_of(sizeof fields / sizeof *fields, fields);
    if (values == NULL)
        goto done;
    record = PyObject_Call(self->held[RECORD], values, NULL);
    Py_DECREF(values);
    if (record == NULL)
        goto done;
    int64_t call[CALL_WORDS] = {
        PyLong_AsLongLong(id), PyLong_AsLongLong(seq), PyLong_AsLongLong(group_id),
        PyLong_AsLongLong(kind), sizes->nbytes, issue_ns, PyLong_AsLongLong(site),
        PyLong_AsLongLong(hot->step), is_followed ? 0 : return_ns, PyLong_AsLongLong(thread),
    };
    if (PyErr_Occurred())
        goto done;
    tell_issue(hot, call);
    if (is_followed)
        failed = follow(hot, thread, work, PyObject_IsTrue(is_async), record);
    else
        failed = set_number(record, NAME("blocked_ns"), return_ns - issue_ns) < 0 ||
                         add_record(hot, record) < 0
                     ? -1
                     : 0;
done:
    Py_XDECREF(thread);
    Py_XDECREF(site);
    Py_XDECREF(seq);
    Py_XDECREF(id);
    Py_XDECREF(record);
    Py_XDECREF(is_async);
    Py_XDECREF(kind);
    Py_XDECREF(group_id);
    return failed;
}

PyObject *call_collective(Wrapper *self, PyObject *args, PyObject *kwargs)
{
    Sizes sizes = {0};
    Hot *hot = self->hot;
    int is_timed = ++hot->calls % self->numbers[TIMED_EVERY] == self->numbers[FIRST_TIMED];
    int64_t taken_ns = is_timed ? -thread_cpu_ns() : 0;
    int usual = is_usual(self, args, kwargs, &sizes);
    if (usual < 0 && give_up(self) < 0)
        return NULL;
    if (usual <= 0)
        return PyObject_Call(self->python, args, kwargs);
    if (is_timed)
        taken_ns += thread_cpu_ns();
    int64_t issue_ns = now_ns();
    PyObject *work = PyObject_Call(self->original, args, kwargs);
    if (work == NULL)
        return NULL;
    int64_t return_ns = now_ns();
    if (is_timed)
        taken_ns -= thread_cpu_ns();
    if (note(self, args, &sizes, work, issue_ns, return_ns) < 0 && give_up(self) < 0)
        Py_CLEAR(work);
    if (is_timed) {
        hot->samples++;
        hot->sampled_ns += taken_ns + thread_cpu_ns();
    }
    return work;
}
