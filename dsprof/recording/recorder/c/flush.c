/* `DeepSpeedZeroHook` for the flush of one gradient bucket, by DeepSpeed 0.17 or later. */

#include "hot.h"

enum held {
    RECORD,       /* Flush */
    DTYPES,       /* dtype -> (name, bytes of an element) */
    DTYPE_NAME,   /* the argument that names the bucket */
    HOOK,         /* knows whether backward is at its end */
    AFTER,        /* is called with the step after a flush; None: nothing is */
};
enum number { STAGE /* 0: the optimizer knows whether it is 1 or 2 */ };

typedef struct {
    PyObject *dtype;    /* name; borrowed from `DTYPES` */
    PyObject *capacity; /* owned */
    int64_t elements, item_bytes;
    Py_ssize_t parameters;
    int stage, slot;
} Bucket;

/* Read what of a bucket only its stage has. */
static int read_optimizer(Wrapper *self, PyObject *optimizer, PyObject *bucket, Bucket *found)
{
    found->stage = (int)self->numbers[STAGE];
    found->slot = -1;
    if (found->stage == 0) {
        int is_partitioned = is_true(optimizer, NAME("partition_gradients"));
        int has_slots = is_true(optimizer, NAME("overlap_comm"));
        int64_t slot = -1;
        if (is_partitioned < 0 || has_slots < 0 ||
            (has_slots && get_number(bucket, NAME("index"), &slot) < 0))
            return -1;
        found->stage = is_partitioned ? 2 : 1;
        found->slot = (int)slot;
    }
    PyObject *size = PyObject_GetAttr(optimizer, NAME("reduce_bucket_size"));
    found->capacity = size == NULL ? NULL : PyNumber_Long(size);
    Py_XDECREF(size);
    return found->capacity == NULL ? -1 : 0;
}

/* Read the bucket of a dtype; 0: there is none, or it is empty. */
static int read_bucket(Wrapper *self, PyObject *optimizer, PyObject *dtype, Bucket *found)
{
    PyObject *known = PyDict_GetItemWithError(self->held[DTYPES], dtype), *buckets, *bucket, *params;
    if (known == NULL)
        return PyErr_Occurred() ? -1 : 0;
    found->dtype = PyTuple_GetItem(known, 0);
    found->item_bytes = PyLong_AsLongLong(PyTuple_GetItem(known, 1));
    if ((buckets = PyObject_GetAttr(optimizer, NAME("ipg_buckets"))) == NULL) {
        PyErr_Clear(); /* before DeepSpeed 0.17 */
        return 0;
    }
    bucket = PyObject_GetItem(buckets, dtype);
    Py_DECREF(buckets);
    if (bucket == NULL)
        return -1;
    params = PyObject_GetAttr(bucket, NAME("params"));
    found->parameters = params == NULL ? -1 : PyObject_Size(params);
    Py_XDECREF(params);
    int is_read = found->parameters >= 0 &&
                  get_number(bucket, NAME("elements"), &found->elements) == 0 &&
                  (found->elements == 0 || read_optimizer(self, optimizer, bucket, found) == 0);
    Py_DECREF(bucket);
    return is_read ? found->elements != 0 : -1;
}

static int find_bucket(Wrapper *self, PyObject *args, PyObject *kwargs, Bucket *found)
{
    PyObject *dtype = NULL;
    Py_ssize_t given = PyTuple_Size(args), named = kwargs == NULL ? 0 : PyDict_Size(kwargs);
    if (given == 2 && named == 0)
        dtype = PyTuple_GetItem(args, 1);
    else if (given == 1 && named == 1)
        dtype = PyDict_GetItemWithError(kwargs, self->held[DTYPE_NAME]);
    if (dtype == NULL || dtype == Py_None)
        return PyErr_Occurred() ? -1 : 0;
    return read_bucket(self, PyTuple_GetItem(args, 0), dtype, found);
}

/* Communicate for a flush from now on; returns the context that was, NULL in an error. */
static Context *begin(Hot *hot, PyObject *thread, PyObject *id)
{
    Context *outer = context_of(hot, thread);
    if (outer == NULL)
        return NULL;
    Context *context = new_context(outer);
    if (context == NULL)
        return NULL;
    context->flush = PyLong_AsLongLong(id);
    context->wire_ops = context->coalesced = 0;
    context->site = hot->site;
    Py_INCREF(outer);
    if (PyDict_SetItem(hot->contexts, thread, (PyObject *)context) < 0)
        Py_CLEAR(outer);
    Py_DECREF(context);
    return outer;
}

static int end(Wrapper *self, PyObject *thread, PyObject *id, const Bucket *bucket,
               PyObject *const *scope, int64_t start_ns)
{
    int is_last = is_true(self->held[HOOK], NAME("in_epilogue"));
    if (is_last < 0)
        return -1;
    PyObject *fields[] = {
        held(id),
        PyLong_FromLong(bucket->stage),
        PyLong_FromLongLong(bucket->elements),
        PyLong_FromLongLong(start_ns),
        PyLong_FromLongLong(now_ns()),
        held(bucket->capacity),
        PyLong_FromLongLong(bucket->elements * bucket->item_bytes),
        held(bucket->dtype),
        PyLong_FromSsize_t(bucket->parameters),
        held(is_last ? NAME("end of backward") : NAME("full")),
        PyLong_FromLong(bucket->slot),
        held(scope[0]),
        held(scope[1]),
        held(scope[2]),
        held(no_text),       /* library */
        held(no_text),       /* module */
        PyLong_FromLong(-1), /* bucket */
        held(scope[3]),
        held(thread),
    };
    PyObject *values = tuple_of(sizeof fields / sizeof *fields, fields);
    if (values == NULL)
        return -1;
    PyObject *record = PyObject_Call(self->held[RECORD], values, NULL);
    Py_DECREF(values);
    int failed = record == NULL || add_record(self->hot, record) < 0;
    Py_XDECREF(record);
    if (!failed && self->held[AFTER] != Py_None) {
        PyObject *done = PyObject_CallFunctionObjArgs(self->held[AFTER], scope[0], NULL);
        failed = done == NULL;
        Py_XDECREF(done);
    }
    return failed ? -1 : 0;
}

PyObject *call_flush(Wrapper *self, PyObject *args, PyObject *kwargs)
{
    Hot *hot = self->hot;
    Bucket bucket = {0};
    PyObject *id = NULL, *thread = NULL, *result = NULL;
    Context *outer = NULL;
    int found = is_live(self) ? find_bucket(self, args, kwargs, &bucket) : 0;
    if (found > 0 && (thread = thread_key()) != NULL && (id = next_of(hot->ids)) != NULL)
        outer = begin(hot, thread, id);
    if (outer == NULL) {
        if (!PyErr_Occurred() || give_up(self) == 0)
            result = PyObject_Call(self->python, args, kwargs);
        goto done;
    }
    PyObject *scope[] = {held(hot->step), held(hot->micro_step), held(hot->phase),
                         held(hot->engine)};
    int64_t start_ns = now_ns();
    result = PyObject_Call(self->original, args, kwargs);
    Raised raised = put_aside();
    int failed = PyDict_SetItem(hot->contexts, thread, (PyObject *)outer) < 0 ||
                 end(self, thread, id, &bucket, scope, start_ns) < 0;
    result = finish(self, result, raised, failed);
    for (int at = 0; at < 4; at++)
        Py_XDECREF(scope[at]);
done:
    Py_XDECREF(bucket.capacity);
    Py_XDECREF((PyObject *)outer);
    Py_XDECREF(id);
    Py_XDECREF(thread);
    return result;
}
