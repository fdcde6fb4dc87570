/* `DeepSpeedFetchHook`: what ZeRO-3 calls around each fetch, and for each parameter it releases. */

#include "hot.h"

typedef struct { /* the fetch and the release that go on, for all wrappers of the hook */
    PyObject_HEAD
    long long fetch, submit_ns, wait_ns;
    char is_watched;   /* Python has to look at parameters in flight */
    PyObject *outer;   /* on whose behalf the thread was before */
    PyObject *release; /* the Span that goes on, or None */
} Fetching;

enum held {
    STATE,      /* Fetching */
    KINDS,      /* name of an event -> a kind, with flags */
    SHARES,     /* engine -> ranks that a parameter is shared out over */
    GRAPH_TASK, /* returns -1 unless autograd is at work */
};
enum own { WAIT_NS }; /* of the span */
enum kind {
    FETCH = 1, PREFETCH = 2, WAIT = 3, KIND_MASK = 3, OF_BACKWARD = 4, OF_FORWARD = 8,
    OTHER = 16, /* nothing is to be done for it */
};

static Fetching *state_of(const Wrapper *self) { return (Fetching *)self->held[STATE]; }

/* Return the kind of an event; -1: error. Most names are those that the wrapper has seen: constants
   of DeepSpeed, each one object. */
static int kind_named(Wrapper *self, PyObject *name)
{
    int at = 0;
    for (; at < MOST_EVENTS && self->seen.fetch.names[at] != NULL; at++)
        if (self->seen.fetch.names[at] == name)
            return self->seen.fetch.kinds[at];
    PyObject *known = PyDict_GetItemWithError(self->held[KINDS], name);
    if (known == NULL && PyErr_Occurred())
        return -1;
    int kind = known == NULL ? OTHER : (int)PyLong_AsLong(known);
    if (at < MOST_EVENTS && kind > 0) {
        self->seen.fetch.names[at] = held(name);
        self->seen.fetch.kinds[at] = (char)kind;
    }
    return kind;
}

/* As `kind_named`, of the event that a call names; 0: Python has to see the call. */
static int kind_of(Wrapper *self, const Given *given, Py_ssize_t count)
{
    if (!is_live(self) || !is_plain(given) || given->count != count || state_of(self)->is_watched)
        return 0;
    return kind_named(self, given->args[1]);
}

static void keep(PyObject **kept, PyObject *object)
{
    PyObject *old = *kept;
    *kept = held(object);
    Py_XDECREF(old);
}

static const Field fetch_fields[] = {
    SPAN_NUMBER("id", id, EACH), SPAN_WORD("kind", what), SPAN_NUMBER("elements", elements, EACH),
    SPAN_TIMES, SPAN_NUMBER("wait_ns", own[WAIT_NS], 0),
    FIELD(Span, A_FLAG, "is_recomputation", is_again, 0), SPAN_STEP, SPAN_WORD("phase", phase),
    CONSTANT(NO_TEXT) /* library */, CONSTANT(NO_TEXT) /* module */, SPAN_ENGINE, SPAN_THREAD,
};

static PyObject *name_of(const Span *span) { return span->what; }

static const Kind fetch_span = KIND("fetch", fetch_record, fetch_fields, name_of);

/* Hand over the release that goes on. */
static int end_release(const Wrapper *self)
{
    Fetching *state = state_of(self);
    if (state->release == Py_None)
        return 0;
    PyObject *release = state->release;
    state->release = held(Py_None);
    int failed = add_record(self->hot, release);
    Py_DECREF(release);
    return failed;
}

static int begin(const Wrapper *self, int kind)
{
    Hot *hot = self->hot;
    Fetching *state = state_of(self);
    if (end_release(self) < 0)
        return -1;
    long long id = 0;
    int failed = next_of(hot->ids, &id) < 0;
    Context *outer = current(hot);
    if (outer->fetch) /* of a fetch that raised */
        outer = nobody;
    Context *context = new_context(outer);
    failed = failed || context == NULL;
    if (!failed) {
        keep(&state->outer, (PyObject *)outer);
        state->fetch = context->fetch = id;
        state->submit_ns = now_ns();
        context->wire_ops = context->coalesced = 0;
        context->site = kind & OF_BACKWARD ? hot->site : 0;
        failed = become(hot, context) < 0;
    }
    Py_XDECREF((PyObject *)context);
    return failed ? -1 : 0;
}

static int end(const Wrapper *self)
{
    PyObject *outer = state_of(self)->outer;
    if (Py_TYPE(outer) == context_type)
        return become(self->hot, (Context *)outer);
    PyErr_SetString(PyExc_TypeError, "a fetch began on behalf of no Context");
    return -1;
}

/* Record a prefetch that was submitted, or a fetch that was waited for. */
static int record(const Wrapper *self, int kind, int64_t elements, int64_t share)
{
    Hot *hot = self->hot;
    Fetching *state = state_of(self);
    int64_t now = now_ns(), start_ns = state->submit_ns, wait_ns = 0;
    int is_wait = (kind & KIND_MASK) == WAIT, again = 0;
    if (end_release(self) < 0 || (!is_wait && end(self) < 0))
        return -1;
    if (is_wait) {
        wait_ns = now - state->wait_ns;
        start_ns = start_ns ? start_ns : state->wait_ns;
        elements *= share;
    }
    /* Within backward; not asked in a forward, for the answer is far from all caches. */
    if (kind & OF_FORWARD && PyUnicode_CompareWithASCIIString(hot->phase, "forward") != 0) {
        PyObject *task = PyObject_CallFunctionObjArgs(self->held[GRAPH_TASK], NULL);
        if (task == NULL)
            return -1;
        again = PyLong_AsLongLong(task) != -1;
        Py_DECREF(task);
    }
    Span *span = new_span(hot, &fetch_span);
    int failed = span == NULL || (state->fetch == 0 && next_of(hot->ids, &state->fetch) < 0);
    if (!failed) {
        span->id = state->fetch;
        span->elements = elements;
        span->start_ns = start_ns;
        span->end_ns = now;
        span->what = held(is_wait ? NAME("fetch") : NAME("prefetch"));
        span->own[WAIT_NS] = wait_ns;
        span->is_again = (char)again;
        failed = add_record(hot, (PyObject *)span) < 0;
    }
    state->fetch = state->submit_ns = 0;
    Py_XDECREF((PyObject *)span);
    return failed ? -1 : 0;
}

/* Return over how many ranks the engine of the phase shares out a parameter; 0: Python has to find
   it out, -1: error. */
static int64_t share_of_engine(const Wrapper *self)
{
    PyObject *engine = PyLong_FromLongLong(self->hot->engine);
    PyObject *known = engine == NULL ? NULL : PyDict_GetItemWithError(self->held[SHARES], engine);
    Py_XDECREF(engine);
    return known == NULL ? (PyErr_Occurred() ? -1 : 0) : PyLong_AsLongLong(known);
}

/* start_event(profiler, name) */
PyObject *call_fetch_start(Wrapper *self, const Given *given)
{
    int kind = kind_of(self, given, 2);
    if (kind < 0 && give_up(self) < 0)
        return NULL;
    if (kind <= 0)
        return pass_on(self->python, given);
    if ((kind & KIND_MASK) == WAIT)
        state_of(self)->wait_ns = now_ns();
    else if (kind != OTHER && begin(self, kind) < 0 && give_up(self) < 0)
        return NULL;
    return pass_on(self->original, given);
}

/* stop_event(profiler, name, elements) */
PyObject *call_fetch_stop(Wrapper *self, const Given *given)
{
    int64_t share = 1, elements = 0;
    int kind = kind_of(self, given, 3), failed = kind < 0;
    if (kind == OTHER)
        return pass_on(self->original, given);
    if (kind > 0 && (elements = PyLong_AsLongLong(given->args[2])) == -1)
        failed = PyErr_Occurred() != NULL;
    if (!failed && elements && (kind & KIND_MASK) == WAIT)
        failed = (share = share_of_engine(self)) == -1 && PyErr_Occurred() != NULL;
    if (failed && give_up(self) < 0)
        return NULL;
    if (failed || kind == 0 || share == 0)
        return pass_on(self->python, given);
    if (elements) {
        failed = (kind & KIND_MASK) == FETCH ? end(self) : record(self, kind, elements, share);
        if (failed && give_up(self) < 0)
            return NULL;
    }
    return pass_on(self->original, given);
}

/* Return whether the release that goes on is of this thread and of the scope of now. */
static int goes_on(const Hot *hot, const Fetching *state)
{
    const Span *release = (Span *)state->release;
    return Py_TYPE(state->release) == span_type && release->step == hot->step &&
           release->micro_step == hot->micro_step && release->engine == hot->engine &&
           release->phase == hot->phase && release->thread == PyThread_get_thread_ident();
}

/* Begin a release, after the one that goes on. */
static int begin_release(const Wrapper *self, int64_t start_ns)
{
    if (end_release(self) < 0)
        return -1;
    Span *release = new_span(self->hot, &fetch_span);
    if (release == NULL)
        return -1;
    int failed = next_of(self->hot->ids, &release->id) < 0;
    release->what = held(NAME("release"));
    release->start_ns = start_ns;
    if (!failed)
        keep(&state_of(self)->release, (PyObject *)release);
    Py_DECREF((PyObject *)release);
    return failed ? -1 : 0;
}

/* Count a parameter to the release that goes on, or begin one. */
static int count(const Wrapper *self, PyObject *param, int64_t start_ns)
{
    Fetching *state = state_of(self);
    int64_t elements;
    if (get_number(param, NAME("ds_numel"), &elements) < 0 ||
        (!goes_on(self->hot, state) && begin_release(self, start_ns) < 0))
        return -1;
    Span *release = (Span *)state->release;
    release->elements += elements;
    release->end_ns = now_ns();
    return 0;
}

/* release_param(coordinator, param, ...) */
PyObject *call_release(Wrapper *self, const Given *given)
{
    if (!is_live(self) || given->count < 2)
        return pass_on(self->python, given);
    PyObject *param = given->args[1];
    PyObject *before = PyObject_GetAttr(param, NAME("ds_status"));
    int64_t start_ns = now_ns();
    if (before == NULL && give_up(self) < 0)
        return NULL;
    PyObject *result = pass_on(self->original, given);
    if (result != NULL && before != NULL) {
        PyObject *after = PyObject_GetAttr(param, NAME("ds_status"));
        int failed = after == NULL || (after != before && count(self, param, start_ns) < 0);
        Py_XDECREF(after);
        if (failed && give_up(self) < 0)
            Py_CLEAR(result);
    }
    Py_XDECREF(before);
    return result;
}

static int fetching_init(Fetching *self, PyObject *args, PyObject *kwargs)
{
    keep(&self->outer, (PyObject *)nobody);
    keep(&self->release, Py_None);
    return 0;
}

static void fetching_dealloc(Fetching *self)
{
    Py_CLEAR(self->outer);
    Py_CLEAR(self->release);
    free_of_heap_type((PyObject *)self);
}

#define COUNT(name) {#name, T_LONGLONG, offsetof(Fetching, name), 0, NULL}
#define OBJECT(name) {#name, T_OBJECT, offsetof(Fetching, name), 0, NULL}
static PyMemberDef fetching_members[] = {
    COUNT(fetch),
    COUNT(submit_ns),
    COUNT(wait_ns),
    {"is_watched", T_BOOL, offsetof(Fetching, is_watched), 0, NULL},
    OBJECT(outer),
    OBJECT(release),
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot fetching_slots[] = {
    {Py_tp_init, fetching_init},
    {Py_tp_dealloc, fetching_dealloc},
    {Py_tp_members, fetching_members},
    {Py_tp_doc, "The fetch and the release that go on."},
    {0, NULL},
};
static PyType_Spec fetching_spec = {"dsprof.recording.recorder._hot.Fetching", sizeof(Fetching), 0,
                                    Py_TPFLAGS_DEFAULT, fetching_slots};

int add_fetching(PyObject *module) { return add_type(module, "Fetching", &fetching_spec) ? 0 : -1; }
