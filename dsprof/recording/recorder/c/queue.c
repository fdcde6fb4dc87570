/* The queue of records for the writer: a deque in one block of memory, to which hooks in C append
   without calling Python. */

#include "hot.h"

PyTypeObject *records_type;

static int make_room(Records *self)
{
    Py_ssize_t room = self->room ? 2 * self->room : 64;
    PyObject **ring = PyMem_Malloc(room * sizeof *ring);
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t at = 0; at < self->count; at++)
        ring[at] = self->ring[(self->first + at) & (self->room - 1)];
    PyMem_Free(self->ring);
    self->ring = ring;
    self->room = room;
    self->first = 0;
    return 0;
}

int append_record(Records *self, PyObject *record)
{
    if (self->count == self->room && make_room(self) < 0)
        return -1;
    self->ring[(self->first + self->count++) & (self->room - 1)] = held(record);
    return 0;
}

/* Take out the oldest record; there must be one. */
static PyObject *take_first(Records *self)
{
    PyObject *record = self->ring[self->first];
    self->first = (self->first + 1) & (self->room - 1);
    self->count--;
    return record;
}

static PyObject *append(Records *self, PyObject *record)
{
    if (append_record(self, record) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *appendleft(Records *self, PyObject *record)
{
    if (self->count == self->room && make_room(self) < 0)
        return NULL;
    self->first = (self->first - 1) & (self->room - 1);
    self->ring[self->first] = held(record);
    self->count++;
    Py_RETURN_NONE;
}

static PyObject *no_record(void)
{
    PyErr_SetString(PyExc_IndexError, "no such record");
    return NULL;
}

/* Take out the oldest record. What a hook in C noted becomes a record of the schema only here, in
   the thread that takes it out. */
static PyObject *popleft(Records *self, PyObject *unused)
{
    if (self->count == 0)
        return no_record();
    PyObject *first = take_first(self), *record = made_record(first);
    Py_DECREF(first);
    return record;
}

static PyObject *clear(Records *self, PyObject *unused)
{
    while (self->count > 0)
        Py_DECREF(take_first(self));
    Py_RETURN_NONE;
}

static Py_ssize_t length(Records *self) { return self->count; }

static PyObject *item(Records *self, Py_ssize_t at)
{
    if (at < 0 || at >= self->count)
        return no_record();
    return held(self->ring[(self->first + at) & (self->room - 1)]);
}

/* Delete the oldest record. To delete another one, or to replace one, is an error. */
static int delete_item(Records *self, Py_ssize_t at, PyObject *value)
{
    if (at != 0 || value != NULL || self->count == 0) {
        no_record();
        return -1;
    }
    Py_DECREF(take_first(self));
    return 0;
}

static void records_dealloc(Records *self)
{
    Py_DECREF(clear(self, NULL));
    PyMem_Free(self->ring);
    free_of_heap_type((PyObject *)self);
}

static PyMethodDef records_methods[] = {
    {"append", (PyCFunction)append, METH_O, "Add a record."},
    {"appendleft", (PyCFunction)appendleft, METH_O, "Put back a record that was taken out."},
    {"popleft", (PyCFunction)popleft, METH_NOARGS, "Take out the oldest record."},
    {"clear", (PyCFunction)clear, METH_NOARGS, "Drop all records."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot records_slots[] = {
    {Py_tp_dealloc, records_dealloc},
    {Py_tp_methods, records_methods},
    {Py_sq_length, length},
    {Py_sq_item, item},
    {Py_sq_ass_item, delete_item},
    {Py_tp_doc, "Records for the writer, the oldest first."},
    {0, NULL},
};
static PyType_Spec records_spec = {"dsprof.recording.recorder._hot.Records", sizeof(Records), 0,
                                   Py_TPFLAGS_DEFAULT, records_slots};

int add_queue(PyObject *module)
{
    records_type = add_type(module, "Records", &records_spec);
    return records_type == NULL ? -1 : 0;
}
