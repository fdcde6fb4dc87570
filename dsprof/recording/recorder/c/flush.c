/* `DeepSpeedZeroHook` for the flush of one gradient bucket, by DeepSpeed 0.17 or later. */

#include "hot.h"

enum held {
    DTYPES,       /* dtype -> (name, bytes of an element) */
    DTYPE_NAME,   /* the argument that names the bucket */
    AFTER,        /* is called with the step after a flush; None: nothing is */
};
enum number { STAGE /* 0: the optimizer knows whether it is 1 or 2 */ };
enum own { OF_STAGE, CAPACITY, ALL_BYTES, PARAMETERS, SLOT }; /* of the span */

typedef struct {
    PyObject *dtype; /* name; borrowed from `DTYPES` */
    int64_t elements, item_bytes, slot;
    Py_ssize_t parameters;
} Bucket;

/* Know what all buckets of an optimizer share. It is read once in a step: each attribute of it is
   far from all caches. */
static int see_optimizer(Wrapper *self, PyObject *optimizer)
{
    int stage = (int)self->numbers[STAGE], has_slots = 0;
    if (self->seen.flush.optimizer == optimizer &&
        self->seen.flush.step_start_ns == self->hot->step_start_ns)
        return 0;
    if (stage == 0) {
        int is_partitioned = is_true(optimizer, NAME("partition_gradients"));
        has_slots = is_true(optimizer, NAME("overlap_comm"));
        if (is_partitioned < 0 || has_slots < 0)
            return -1;
        stage = is_partitioned ? 2 : 1;
    }
    PyObject *size = PyObject_GetAttr(optimizer, NAME("reduce_bucket_size"));
    PyObject *whole = size == NULL ? NULL : PyNumber_Long(size); /* it may be 5e8 */
    long long capacity = whole == NULL ? -1 : PyLong_AsLongLong(whole);
    Py_XDECREF(size);
    Py_XDECREF(whole);
    if (PyErr_Occurred())
        return -1;
    self->seen.flush.optimizer = optimizer;
    self->seen.flush.step_start_ns = self->hot->step_start_ns;
    self->seen.flush.capacity = capacity;
    self->seen.flush.stage = stage;
    self->seen.flush.has_slots = has_slots;
    return 0;
}

/* Read a bucket that is not empty. */
static int read_bucket(Wrapper *self, PyObject *optimizer, PyObject *bucket, Bucket *found)
{
    PyObject *params = PyObject_GetAttr(bucket, NAME("params"));
    found->parameters = params == NULL ? -1 : PyObject_Size(params);
    Py_XDECREF(params);
    if (found->parameters < 0 || see_optimizer(self, optimizer) < 0)
        return -1;
    found->slot = -1;
    return self->seen.flush.has_slots ? get_number(bucket, NAME("index"), &found->slot) : 0;
}

/* Return the dtype whose bucket a call flushes, borrowed; NULL without an error: Python finds it. */
static PyObject *dtype_of(const Wrapper *self, const Given *given, PyObject *buckets)
{
    Py_ssize_t named = given->names == NULL ? 0 : PyTuple_Size(given->names), at = 0;
    PyObject *dtype = NULL;
    if (given->count == 2 && named == 0)
        dtype = given->args[1];
    else if (given->count == 1 && named == 1 &&
             PyUnicode_Compare(PyTuple_GetItem(given->names, 0), self->held[DTYPE_NAME]) == 0)
        dtype = given->args[1];
    else if (given->count == 1 && named == 0 && PyDict_Check(buckets) && PyDict_Size(buckets) == 1)
        PyDict_Next(buckets, &at, &dtype, NULL); /* of all dtypes, and there is one */
    return dtype == Py_None ? NULL : dtype;
}

/* Find the bucket that a call flushes; 0: Python has to, or it is empty. */
static int find_bucket(Wrapper *self, const Given *given, Bucket *found)
{
    PyObject *optimizer = given->count > 0 ? given->args[0] : Py_None;
    PyObject *buckets = PyObject_GetAttr(optimizer, NAME("ipg_buckets"));
    if (buckets == NULL) {
        PyErr_Clear(); /* before DeepSpeed 0.17 */
        return 0;
    }
    PyObject *dtype = dtype_of(self, given, buckets);
    PyObject *known = dtype == NULL ? NULL : PyDict_GetItemWithError(self->held[DTYPES], dtype);
    PyObject *bucket = known == NULL ? NULL : PyObject_GetItem(buckets, dtype);
    Py_DECREF(buckets);
    if (bucket == NULL)
        return PyErr_Occurred() ? -1 : 0;
    found->dtype = PyTuple_GetItem(known, 0);
    found->item_bytes = PyLong_AsLongLong(PyTuple_GetItem(known, 1));
    int failed = get_number(bucket, NAME("elements"), &found->elements) < 0 ||
                 (found->elements != 0 && read_bucket(self, optimizer, bucket, found) < 0);
    Py_DECREF(bucket);
    return failed ? -1 : found->elements != 0;
}

/* Communicate for a flush from now on; returns the context that was, NULL in an error. */
static Context *begin(Hot *hot, long long id)
{
    Context *outer = current(hot);
    Context *context = new_context(outer);
    if (context == NULL)
        return NULL;
    context->flush = id;
    context->wire_ops = context->coalesced = 0;
    context->site = hot->site;
    Py_INCREF(outer);
    if (become(hot, context) < 0)
        Py_CLEAR(outer);
    Py_DECREF(context);
    return outer;
}

static const Field flush_fields[] = {
    SPAN_NUMBER("id", id, EACH), SPAN_NUMBER("stage", own[OF_STAGE], EACH),
    SPAN_NUMBER("elements", elements, EACH), SPAN_TIMES, SPAN_NUMBER("capacity", own[CAPACITY], 0),
    SPAN_NUMBER("nbytes", own[ALL_BYTES], 0), SPAN_WORD("dtype", text),
    SPAN_NUMBER("parameters", own[PARAMETERS], 0), SPAN_WORD("cause", what),
    SPAN_NUMBER("slot", own[SLOT], -1), SPAN_STEP, SPAN_WORD("phase", phase),
    CONSTANT(NO_TEXT) /* library */, CONSTANT(NO_TEXT) /* module */,
    CONSTANT(MINUS_ONE) /* bucket */, SPAN_ENGINE, SPAN_THREAD,
};

static PyObject *name_of(const Span *span)
{
    return span->what == NAME("full") ? NAME("flush: full") : NAME("flush: end of backward");
}

static const Kind flush_span = KIND("flush", flush_record, flush_fields, name_of);

static int end(Wrapper *self, Span *span)
{
    span->what = held(self->hot->in_epilogue ? NAME("end of backward") : NAME("full"));
    span->end_ns = now_ns();
    int failed = add_record(self->hot, (PyObject *)span) < 0;
    if (!failed && self->held[AFTER] != Py_None) {
        PyObject *done = PyObject_CallFunction(self->held[AFTER], "L", span->step);
        failed = done == NULL;
        Py_XDECREF(done);
    }
    return failed ? -1 : 0;
}

PyObject *call_flush(Wrapper *self, const Given *given)
{
    Hot *hot = self->hot;
    Bucket bucket = {0};
    PyObject *result = NULL;
    Context *outer = NULL;
    Span *span = NULL;
    int found = is_live(self) ? find_bucket(self, given, &bucket) : 0;
    if (found > 0 && (span = new_span(hot, &flush_span)) != NULL &&
        next_of(hot->ids, &span->id) == 0)
        outer = begin(hot, span->id);
    if (outer == NULL) {
        if (!PyErr_Occurred() || give_up(self) == 0)
            result = pass_on(self->python, given);
        goto done;
    }
    span->elements = bucket.elements;
    span->text = held(bucket.dtype);
    span->own[OF_STAGE] = self->seen.flush.stage;
    span->own[CAPACITY] = self->seen.flush.capacity;
    span->own[ALL_BYTES] = bucket.elements * bucket.item_bytes;
    span->own[PARAMETERS] = bucket.parameters;
    span->own[SLOT] = bucket.slot;
    span->start_ns = now_ns();
    result = pass_on(self->original, given);
    Raised raised = put_aside();
    int failed = become(hot, outer) < 0 || end(self, span) < 0;
    result = finish(self, result, raised, failed);
done:
    Py_XDECREF((PyObject *)span);
    Py_XDECREF((PyObject *)outer);
    return result;
}

PyObject *call_epilogue(Wrapper *self, const Given *given)
{
    if (!is_live(self))
        return pass_on(self->python, given);
    self->hot->in_epilogue = 1;
    PyObject *result = pass_on(self->original, given);
    self->hot->in_epilogue = 0;
    return result;
}
