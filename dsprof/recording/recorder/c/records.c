/* The structs that hooks in C fill in. In a record of the schema each number is an object, which
   training would make and another core would free. The writer's thread writes lines of these
   structs (`lines.c`), or makes the record if Python has to write it. Hooks in Python read a
   `Call` as they read a `Collective`. */

#include "hot.h"

enum { MOST_FIELDS = 40 };

PyTypeObject *call_type;
PyTypeObject *span_type;
PyObject *scope_record, *collective_record, *phase_record, *step_record;
PyObject *flush_record, *fetch_record;

Call *new_call(void) { return (Call *)PyType_GenericAlloc(call_type, 0); }

Span *new_span(const Hot *hot, const Kind *kind)
{
    Span *span = (Span *)PyType_GenericAlloc(span_type, 0);
    if (span != NULL) {
        span->kind = kind;
        span->step = hot->step;
        span->micro_step = hot->micro_step;
        span->engine = hot->engine;
        span->thread = PyThread_get_thread_ident();
        span->phase = held(hot->phase);
    }
    return span;
}

#define COUNT(name, usual) FIELD(Call, A_NUMBER, #name, name, usual)
#define TIME(name, usual) FIELD(Call, A_MOMENT, #name, name, usual)
#define WORD(name) FIELD(Call, A_WORD, #name, name, 0)
#define TOLD(name) FIELD(Call, A_FLAG, #name, name, 0)
static const Field call_fields[] = {
    COUNT(id, EACH), COUNT(group, EACH), COUNT(seq, EACH), COUNT(nbytes, EACH),
    COUNT(elements, EACH), TIME(issue_ns, EACH), FIELD(Call, AN_OBJECT, "", op, 0),
    COUNT(tensors, 1), WORD(dtype), WORD(requested), COUNT(request, 0), TOLD(is_async),
    WORD(reduce_op), CONSTANT(MINUS_ONE) /* peer */,
    COUNT(site, 0), COUNT(step, -1), COUNT(micro_step, 0), WORD(phase), COUNT(engine, -1),
    COUNT(flush, 0), COUNT(fetch, 0), COUNT(coalesced, 0), FIELD(Call, A_LANE, "thread", thread, 0),
    TIME(return_ns, 0), COUNT(stream, 0), TIME(pending_ns, 0), TIME(done_ns, 0), TIME(wait_ns, 0),
    TIME(waited_ns, 0), COUNT(blocked_ns, 0), COUNT(waits, 0), CONSTANT(ON_WIRE), TOLD(captured),
    TOLD(is_estimated), FIELD(Call, AN_OBJECT, "", outputs, 0),
};
_Static_assert(sizeof call_fields / sizeof *call_fields <= MOST_FIELDS, "the record of most fields");
const Kind call_kind = KIND("comm", collective_record, call_fields, NULL);

static PyObject *value_of(const Field *field, const void *recorded)
{
    const void *at = (const char *)recorded + field->offset;
    switch (field->kind) {
    case A_NUMBER:
    case A_MOMENT:
        return PyLong_FromLongLong(*(const long long *)at);
    case A_FLAG:
        return PyBool_FromLong(*(const char *)at);
    case A_THREAD:
    case A_LANE:
        return PyLong_FromUnsignedLong(*(const unsigned long *)at);
    case MINUS_ONE:
        return PyLong_FromLong(-1);
    case NO_TEXT:
        return held(no_text);
    case ON_WIRE:
        return held(Py_True);
    default:
        return held(*(PyObject *const *)at);
    }
}

static PyObject *made_as(const Kind *kind, const void *recorded)
{
    PyObject *values[MOST_FIELDS];
    for (size_t at = 0; at < kind->count; at++)
        values[at] = value_of(kind->fields + at, recorded);
    return made_of(*kind->record, kind->count, values);
}

/* Return the `Collective`. */
static PyObject *made_collective(Call *self, PyObject *unused)
{
    return made_as(&call_kind, self);
}

/* Return what a hook recorded as a record of the schema; a record of the schema stays as it is. */
PyObject *made_record(PyObject *recorded)
{
    if (Py_TYPE(recorded) == call_type)
        return made_collective((Call *)recorded, NULL);
    if (Py_TYPE(recorded) == span_type)
        return made_as(((Span *)recorded)->kind, recorded);
    return held(recorded);
}

static PyObject *made(PyObject *module, PyObject *recorded) { return made_record(recorded); }

static void call_dealloc(Call *self)
{
    for (PyObject **at = &self->op; at <= &self->outputs; at++)
        Py_CLEAR(*at);
    free_of_heap_type((PyObject *)self);
}

static void span_dealloc(Span *self)
{
    Py_CLEAR(self->phase);
    Py_CLEAR(self->text);
    Py_CLEAR(self->what);
    free_of_heap_type((PyObject *)self);
}

#define NUMBER(name) {#name, T_LONGLONG, offsetof(Call, name), 0, NULL}
#define FLAG(name) {#name, T_BOOL, offsetof(Call, name), 0, NULL}
#define OBJECT(name) {#name, T_OBJECT_EX, offsetof(Call, name), 0, NULL}
static PyMemberDef call_members[] = {
    NUMBER(id),         NUMBER(issue_ns),   NUMBER(pending_ns),
    NUMBER(done_ns),    NUMBER(wait_ns),    NUMBER(waited_ns),
    NUMBER(blocked_ns), NUMBER(waits),      {"thread", T_ULONG, offsetof(Call, thread), 0, NULL},
    FLAG(captured),     FLAG(is_estimated), NUMBER(group),
    NUMBER(seq),        NUMBER(nbytes),     NUMBER(elements),
    NUMBER(tensors),    NUMBER(request),    NUMBER(site),
    NUMBER(step),       NUMBER(micro_step), NUMBER(engine),
    NUMBER(flush),      NUMBER(fetch),      NUMBER(coalesced),
    NUMBER(return_ns),  NUMBER(stream),     OBJECT(op),
    OBJECT(dtype),      OBJECT(requested),  OBJECT(phase),
    OBJECT(outputs),    FLAG(is_async),     OBJECT(reduce_op),
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef call_methods[] = {
    {"__copy__", (PyCFunction)made_collective, METH_NOARGS, "Return the `Collective`."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot call_slots[] = {
    {Py_tp_dealloc, call_dealloc}, {Py_tp_members, call_members}, {Py_tp_methods, call_methods},
    {Py_tp_doc, "A collective."},  {0, NULL},
};
static PyType_Spec call_spec = {"dsprof.recording.recorder._hot.Call", sizeof(Call), 0,
                                Py_TPFLAGS_DEFAULT, call_slots};

static PyMemberDef span_members[] = { /* of a phase, to hooks in Python */
    {"start_ns", T_LONGLONG, offsetof(Span, start_ns), 0, NULL},
    {"stage", T_LONGLONG, offsetof(Span, own), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot span_slots[] = {
    {Py_tp_dealloc, span_dealloc},
    {Py_tp_members, span_members},
    {Py_tp_doc, "A phase, a step, a flush or a fetch."},
    {0, NULL},
};
static PyType_Spec span_spec = {"dsprof.recording.recorder._hot.Span", sizeof(Span), 0,
                                Py_TPFLAGS_DEFAULT, span_slots};

static PyMethodDef functions[] = {
    {"made", made, METH_O, "Return the record of the schema of what a hook has recorded."},
    {NULL, NULL, 0, NULL},
};

int add_records(PyObject *module)
{
    PyObject *schema = PyImport_ImportModule("dsprof.trace.schema");
    if (schema == NULL)
        return -1;
    scope_record = PyObject_GetAttrString(schema, "Scope");
    collective_record = PyObject_GetAttrString(schema, "Collective");
    phase_record = PyObject_GetAttrString(schema, "Phase");
    step_record = PyObject_GetAttrString(schema, "Step");
    flush_record = PyObject_GetAttrString(schema, "Flush");
    fetch_record = PyObject_GetAttrString(schema, "Fetch");
    Py_DECREF(schema);
    if (PyErr_Occurred())
        return -1;
    call_type = add_type(module, "Call", &call_spec);
    span_type = add_type(module, "Span", &span_spec);
    return call_type == NULL || span_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
