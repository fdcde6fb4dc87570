/* The state that hooks share, and what they do with it. */

#include "hot.h"

#include <string.h>
#include <time.h>

PyTypeObject *hot_type, *switch_type, *context_type;
PyObject *no_text;
Context *nobody;

static int64_t read_clock(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

int64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

int64_t thread_cpu_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

PyObject *held(PyObject *object)
{
    Py_XINCREF(object);
    return object;
}

/* Say whether an attribute is true; -1 in an error. */
int is_true(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    int is = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return is;
}

PyObject *thread_key(void) { return PyLong_FromUnsignedLong(PyThread_get_thread_ident()); }

/* Take the next of an endless iterator. */
int next_of(PyObject *iterator, long long *number)
{
    PyObject *next = PyIter_Check(iterator) ? PyIter_Next(iterator) : NULL;
    if (next == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "numbers must come from an endless iterator");
        return -1;
    }
    *number = PyLong_AsLongLong(next);
    Py_DECREF(next);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Take an entry out of a dict; NULL without an error: it has none. */
PyObject *popped(PyObject *dict, PyObject *key)
{
    PyObject *value = PyDict_GetItemWithError(dict, key);
    if (value == NULL)
        return NULL;
    Py_INCREF(value);
    if (PyDict_DelItem(dict, key) < 0)
        Py_CLEAR(value);
    return value;
}

Context *new_context(const Context *like)
{
    Context *made = (Context *)PyType_GenericAlloc(context_type, 0);
    if (made != NULL) {
        memcpy(&made->request, &like->request, sizeof(Context) - offsetof(Context, request));
        Py_INCREF(made->requested);
    }
    return made;
}

static Behalf *behalf_of(const Hot *hot, unsigned long thread)
{
    Behalf *at = hot->behalves, *end = at + hot->behalf_count;
    while (at != end && at->thread != thread)
        at++;
    return at;
}

/* Return on whose behalf this thread communicates, borrowed. */
Context *current(const Hot *hot)
{
    Behalf *found = behalf_of(hot, PyThread_get_thread_ident());
    return found == hot->behalves + hot->behalf_count ? nobody : found->context;
}

/* Communicate on behalf of `context` from now on, in this thread. */
int become(Hot *hot, Context *context)
{
    unsigned long thread = PyThread_get_thread_ident();
    Behalf *at = behalf_of(hot, thread), *end = hot->behalves + hot->behalf_count;
    Context *old = at == end ? NULL : at->context;
    if (context == nobody) {
        if (at != end)
            *at = hot->behalves[--hot->behalf_count];
    } else {
        if (hot->behalf_count == hot->behalf_room && at == end) {
            Py_ssize_t room = 2 * hot->behalf_room + 4;
            Behalf *moved = PyMem_Realloc(hot->behalves, room * sizeof *moved);
            if (moved == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            hot->behalves = moved;
            hot->behalf_room = room;
            at = moved + hot->behalf_count;
        }
        hot->behalf_count += old == NULL;
        *at = (Behalf){thread, (Context *)held((PyObject *)context)};
    }
    Py_XDECREF((PyObject *)old);
    return 0;
}

/* Hand a record to the writer. */
int add_record(Hot *hot, PyObject *record)
{
    Records *records = (Records *)hot->records;
    if (Py_TYPE(hot->records) != records_type) {
        PyErr_SetString(PyExc_TypeError, "records must go into Records");
        return -1;
    }
    if (records->count < MOST_RECORDS)
        return append_record(records, record);
    PyObject *done = PyObject_CallFunctionObjArgs(hot->overflow, record, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The process may end at any instruction: the compiler must not change the order. */
static void store(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static int64_t *place_of(const Hot *hot, int64_t id)
{
    return hot->words + hot->layout.ring + (id & (hot->layout.calls - 1)) * CALL_WORDS;
}

/* Move a call in flight to a place of its own, before a later one takes its place. */
static void keep(const Hot *hot, const int64_t *call)
{
    int64_t *at = hot->words + hot->layout.old;
    int64_t *end = at + hot->layout.old_calls * CALL_WORDS;
    for (; at != end; at += CALL_WORDS)
        if (at[DONE_NS] || !at[ID]) {
            memcpy(at, call, CALL_WORDS * sizeof *call);
            return;
        }
    hot->words[hot->layout.lost]++;
}

void tell_issue(const Hot *hot, const int64_t call[CALL_WORDS])
{
    if (hot->words == NULL)
        return;
    int64_t *at = place_of(hot, call[ID]);
    if (at[DONE_NS]) {
        int64_t group = at[WHERE] & 0xffffffff;
        int64_t *passed = hot->words + hot->layout.passed + group;
        if (group < hot->layout.groups && *passed < at[SEQ])
            *passed = at[SEQ];
    } else if (at[ID])
        keep(hot, at);
    store(at + THREAD, 0);
    for (int word = 0; word < CALL_WORDS; word++)
        store(at + word, call[word]);
}

void tell_done(const Hot *hot, int64_t id, int64_t time_ns)
{
    if (hot->words == NULL)
        return;
    int64_t *at = place_of(hot, id);
    if (at[ID] != id) {
        at = hot->words + hot->layout.old;
        int64_t *end = at + hot->layout.old_calls * CALL_WORDS;
        while (at != end && at[ID] != id)
            at += CALL_WORDS;
        if (at == end)
            return;
    }
    store(at + DONE_NS, time_ns);
}

int get_number(PyObject *record, PyObject *name, int64_t *value)
{
    PyObject *number = PyObject_GetAttr(record, name);
    if (number == NULL)
        return -1;
    *value = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Make a record of fields by position. It takes them, also in an error. */
PyObject *made_of(PyObject *record, Py_ssize_t count, PyObject *const *owned)
{
    PyObject *values = PyTuple_New(count), *made = NULL;
    int is_whole = values != NULL;
    for (Py_ssize_t at = 0; at < count; at++) {
        is_whole = is_whole && owned[at] != NULL;
        if (values == NULL)
            Py_XDECREF(owned[at]);
        else
            PyTuple_SetItem(values, at, owned[at]);
    }
    if (is_whole)
        made = PyObject_Call(record, values, NULL);
    Py_XDECREF(values);
    return made;
}

/* -- HotState ---------------------------------------------------------------------------------- */

/* All that the struct holds. */
#define EACH_OBJECT(at, self) (PyObject **at = &self->device; at <= &self->scope; at++)

static int hot_traverse(Hot *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    for EACH_OBJECT (at, self)
        Py_VISIT(*at);
    return 0;
}

/* Break the cycles, and only those: what still runs in one finds the rest as it was. */
static int hot_clear(Hot *self)
{
    self->recording = 0;
    Py_CLEAR(self->device);
    Py_CLEAR(self->followers);
    Py_CLEAR(self->overflow);
    Py_CLEAR(self->keep);
    return 0;
}

void free_of_heap_type(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    int is_collected = PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC);
    (is_collected ? PyObject_GC_Del : PyObject_Free)(self);
    Py_DECREF(type);
}

static void hot_dealloc(Hot *self)
{
    PyObject_GC_UnTrack(self);
    for EACH_OBJECT (at, self)
        Py_CLEAR(*at);
    while (self->behalf_count > 0)
        Py_DECREF((PyObject *)self->behalves[--self->behalf_count].context);
    PyMem_Free(self->behalves);
    free_of_heap_type((PyObject *)self);
}

/* Return the scope, borrowed; NULL in an error. Hooks in C read its parts, so that most scopes are
   never made. To make one may collect garbage, and so run Python: another thread may move on. */
PyObject *scope_of(Hot *self)
{
    while (self->scope == NULL) {
        long long moves = self->moves;
        PyObject *parts[] = {
            PyLong_FromLongLong(self->step),   PyLong_FromLongLong(self->micro_step),
            held(self->phase),                 PyLong_FromLongLong(self->engine),
            PyLong_FromLongLong(self->site),
        };
        PyObject *scope = made_of(scope_record, sizeof parts / sizeof *parts, parts);
        if (scope == NULL)
            return NULL;
        if (self->scope == NULL && self->moves == moves)
            self->scope = scope;
        else
            Py_DECREF(scope);
    }
    return self->scope;
}

static PyObject *get_scope(Hot *self, void *unused)
{
    return held(self->phase == NULL ? Py_None : scope_of(self));
}

/* Be in another scope from now on: step, micro-step, engine, site. */
void move_scope(Hot *self, PyObject *phase, const long long numbers[4])
{
    PyObject *old_scope = self->scope, *old_phase = self->phase;
    self->scope = NULL;
    self->moves++;
    self->phase = held(phase);
    self->step = numbers[0];
    self->micro_step = numbers[1];
    self->engine = numbers[2];
    self->site = numbers[3];
    Py_XDECREF(old_scope); /* last: what is freed may run Python */
    Py_XDECREF(old_phase);
}

static int set_scope(Hot *self, PyObject *scope, void *unused)
{
    int64_t read[4];
    if (scope == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a scope cannot be deleted");
        return -1;
    }
    PyObject *phase = PyObject_GetAttr(scope, NAME("phase"));
    if (phase == NULL || get_number(scope, NAME("step"), &read[0]) < 0 ||
        get_number(scope, NAME("micro_step"), &read[1]) < 0 ||
        get_number(scope, NAME("engine"), &read[2]) < 0 ||
        get_number(scope, NAME("site"), &read[3]) < 0) {
        Py_XDECREF(phase);
        return -1;
    }
    const long long numbers[] = {read[0], read[1], read[2], read[3]};
    move_scope(self, phase, numbers);
    self->scope = held(scope);
    Py_DECREF(phase);
    return 0;
}

static PyObject *get_works(Hot *self, void *unused)
{
    if (self->works == NULL || settle(self) < 0)
        return PyErr_Occurred() ? NULL : held(Py_None);
    return held(self->works);
}

static int set_works(Hot *self, PyObject *works, void *unused)
{
    PyObject *old = self->works;
    self->works = held(works);
    Py_XDECREF(old);
    return 0;
}

static PyObject *get_current(Hot *self, PyObject *unused) { return held((PyObject *)current(self)); }

static PyObject *do_become(Hot *self, PyObject *context)
{
    if (Py_TYPE(context) != context_type) {
        PyErr_SetString(PyExc_TypeError, "the context of a thread must be a Context");
        return NULL;
    }
    if (become(self, (Context *)context) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *open_state(Hot *self, PyObject *args)
{
    Layout layout;
    PyObject *owner, *old = self->state;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "OKLLLLLLL", &owner, &address, &layout.ring, &layout.calls,
                          &layout.passed, &layout.groups, &layout.old, &layout.old_calls,
                          &layout.lost))
        return NULL;
    Py_INCREF(owner);
    self->state = owner;
    self->layout = layout;
    self->words = (int64_t *)(uintptr_t)address;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyObject *close_state(Hot *self, PyObject *unused)
{
    self->words = NULL;
    Py_CLEAR(self->state);
    Py_RETURN_NONE;
}

static int read_numbers(PyObject *const *args, Py_ssize_t count, int wanted, int64_t *numbers)
{
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "takes %d numbers", wanted);
        return -1;
    }
    for (int at = 0; at < wanted; at++) {
        numbers[at] = PyLong_AsLongLong(args[at]);
        if (numbers[at] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *issue(Hot *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t call[CALL_WORDS];
    if (read_numbers(args, count, CALL_WORDS, call) < 0)
        return NULL;
    tell_issue(self, call);
    Py_RETURN_NONE;
}

static PyObject *done(Hot *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t told[2];
    if (read_numbers(args, count, 2, told) < 0)
        return NULL;
    tell_done(self, told[0], told[1]);
    Py_RETURN_NONE;
}

enum { MOST_METHODS = 12 };
static PyMethodDef hot_methods[MOST_METHODS] = {
    {"open_state", (PyCFunction)open_state, METH_VARARGS,
     "Write to a live state: what owns its memory, the address, and the layout in words."},
    {"close_state", (PyCFunction)close_state, METH_NOARGS, "Write to no live state."},
    {"current", (PyCFunction)get_current, METH_NOARGS, "As `Contexts.current`."},
    {"become", (PyCFunction)do_become, METH_O, "As `Contexts.become`."},
    {"issue", (PyCFunction)(void (*)(void))issue, METH_FASTCALL, "As `LiveState.issue`."},
    {"done", (PyCFunction)(void (*)(void))done, METH_FASTCALL, "As `LiveState.done`."},
};

#define OBJECT(name) {#name, T_OBJECT_EX, offsetof(Hot, name), 0, NULL}
static PyMemberDef hot_members[] = {
    {"recording", T_BOOL, offsetof(Hot, recording), 0, NULL},
    {"in_epilogue", T_BOOL, offsetof(Hot, in_epilogue), 0, NULL},
    {"step_start_ns", T_LONGLONG, offsetof(Hot, step_start_ns), 0, NULL},
    {"calls", T_LONGLONG, offsetof(Hot, calls), 0, NULL},
    {"samples", T_LONGLONG, offsetof(Hot, samples), 0, NULL},
    {"sampled_ns", T_LONGLONG, offsetof(Hot, sampled_ns), 0, NULL},
    {"longest_ns", T_LONGLONG, offsetof(Hot, longest_ns), 0, NULL},
    OBJECT(device),
    OBJECT(followers),
    OBJECT(ids),
    OBJECT(blocking),
    OBJECT(completed),
    OBJECT(keep),
    OBJECT(records),
    OBJECT(overflow),
    OBJECT(phases),
    {"phase", T_OBJECT_EX, offsetof(Hot, phase), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef hot_getset[] = {
    {"works", (getter)get_works, (setter)set_works, NULL, NULL},
    {"scope", (getter)get_scope, (setter)set_scope, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot hot_slots[] = {
    {Py_tp_traverse, hot_traverse}, {Py_tp_clear, hot_clear},     {Py_tp_dealloc, hot_dealloc},
    {Py_tp_members, hot_members},   {Py_tp_methods, hot_methods}, {Py_tp_getset, hot_getset},
    {Py_tp_doc, "What hooks read at each call."},
    {0, NULL},
};
static PyType_Spec hot_spec = {"dsprof.recording.recorder._hot.HotState", sizeof(Hot), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, hot_slots};

/* -- Context and Switch ------------------------------------------------------------------------ */

static int context_init(Context *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request",   "requested", "flush", "fetch", "wire_ops",
                            "coalesced", "site",      NULL};
    PyObject *requested = no_text, *old = self->requested;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|LULLLLL", names, &self->request, &requested,
                                     &self->flush, &self->fetch, &self->wire_ops, &self->coalesced,
                                     &self->site))
        return -1;
    Py_INCREF(requested);
    self->requested = requested;
    Py_XDECREF(old);
    return 0;
}

static void context_dealloc(Context *self)
{
    Py_CLEAR(self->requested);
    free_of_heap_type((PyObject *)self);
}

#define COUNT(name) {#name, T_LONGLONG, offsetof(Context, name), 0, NULL}
static PyMemberDef context_members[] = {
    COUNT(request),   COUNT(flush), COUNT(fetch), COUNT(wire_ops),
    COUNT(coalesced), COUNT(site),  {"requested", T_OBJECT_EX, offsetof(Context, requested), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot context_slots[] = {
    {Py_tp_init, context_init}, {Py_tp_dealloc, context_dealloc}, {Py_tp_members, context_members},
    {Py_tp_doc, "On whose behalf a thread communicates."},
    {0, NULL},
};
static PyType_Spec context_spec = {"dsprof.recording.recorder._hot.Context", sizeof(Context), 0,
                                   Py_TPFLAGS_DEFAULT, context_slots};

static PyMemberDef switch_members[] = {
    {"broken", T_BOOL, offsetof(Switch, broken), 0, NULL},
    {"in_python", T_BOOL, offsetof(Switch, in_python), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot switch_slots[] = {
    {Py_tp_members, switch_members},
    {Py_tp_doc, "Whether a hook is inert, and whether it leaves nothing to C."},
    {0, NULL},
};
static PyType_Spec switch_spec = {"dsprof.recording.recorder._hot.Switch", sizeof(Switch), 0,
                                  Py_TPFLAGS_DEFAULT, switch_slots};

/* Add a type to a module; returns it, borrowed from the module for good. */
PyTypeObject *add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL || PyModule_AddObject(module, name, type) < 0) {
        Py_XDECREF(type);
        return NULL;
    }
    Py_INCREF(type); /* the module has the other reference */
    return (PyTypeObject *)type;
}

int add_hot(PyObject *module)
{
    static int is_full; /* after an import that failed, which is tried again */
    int count = 0;
    while (hot_methods[count].ml_name != NULL)
        count++;
    for (const PyMethodDef *method = progress_methods; method->ml_name != NULL && !is_full; method++)
        hot_methods[count++] = *method;
    is_full = 1;
    no_text = PyUnicode_InternFromString("");
    hot_type = add_type(module, "HotState", &hot_spec);
    switch_type = add_type(module, "Switch", &switch_spec);
    context_type = add_type(module, "Context", &context_spec);
    if (no_text == NULL || hot_type == NULL || switch_type == NULL || context_type == NULL)
        return -1;
    nobody = (Context *)PyObject_CallFunctionObjArgs((PyObject *)context_type, NULL);
    Py_XINCREF((PyObject *)nobody);
    return nobody == NULL ? -1 : PyModule_AddObject(module, "NOBODY", (PyObject *)nobody);
}
