/* Writes the lines of what hooks in C noted, without a Python object for each number. Each line is
   equal, to the byte, to the one that `dsprof.trace.writing.encode` makes of the record. That
   module writes what is unusual: a lane without a name yet, text that JSON escapes, a time of more
   digits than a double holds. */

#include "hot.h"

#include <string.h>

enum {
    MOST_THREADS = 64,
    LANES = 100, /* of collectives; as in encode.py, like the first one */
    FIRST_LANE = 1000,
    MOST_TEXT = 128,  /* bytes of a word */
    MOST_LINE = 4096, /* bytes; no line is longer */
    MOST_SUMS = 16,   /* of one `take` */
};
static const int64_t MOST_NS = INT64_C(1000000000000000); /* `repr` shows 15 digits as they are */

typedef struct {
    PyObject_HEAD
    long long rank, start_ns;
    char *buffer;
    Py_ssize_t capacity;
    int threads, lanes;
    unsigned long thread_of[MOST_THREADS];
    long long lane_of[MOST_THREADS];
    int64_t ends[LANES]; /* of the last collective on each lane */
} Lines;

/* -- text -------------------------------------------------------------------------------------- */

typedef struct {
    char *at;        /* the end; there is room for one more line */
    char is_unusual; /* Python has to write the line */
} Text;

#define PUT(text, part) put(text, part, sizeof(part) - 1)

static void put(Text *text, const char *part, size_t length)
{
    memcpy(text->at, part, length);
    text->at += length;
}

static void put_number(Text *text, int64_t number)
{
    char digits[20], *first = digits + sizeof digits;
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    do
        *--first = '0' + left % 10;
    while ((left /= 10) != 0);
    if (number < 0)
        *text->at++ = '-';
    put(text, first, digits + sizeof digits - first);
}

/* Write a time in microseconds, as `repr` of a double does. */
static void put_us(Text *text, int64_t time_ns)
{
    uint64_t size_ns = time_ns < 0 ? -(uint64_t)time_ns : (uint64_t)time_ns;
    text->is_unusual |= size_ns >= (uint64_t)MOST_NS;
    if (time_ns < 0)
        *text->at++ = '-';
    put_number(text, size_ns / 1000);
    const char rest[] = {'.', '0' + size_ns / 100 % 10, '0' + size_ns / 10 % 10,
                         '0' + size_ns % 10};
    size_t length = sizeof rest;
    while (length > 2 && rest[length - 1] == '0')
        length--;
    put(text, rest, length);
}

static void put_word(Text *text, PyObject *word)
{
    Py_ssize_t length = 0;
    const char *from = PyUnicode_AsUTF8AndSize(word, &length);
    if (from == NULL || length > MOST_TEXT) {
        PyErr_Clear(); /* a lone surrogate has no UTF-8 */
        text->is_unusual = 1;
        return;
    }
    *text->at++ = '"';
    for (const char *end = from + length; from != end; from++) {
        text->is_unusual |= *from < ' ' || *from == '"' || *from == '\\' || *from == 127;
        *text->at++ = *from;
    }
    *text->at++ = '"';
}

static int is_empty(PyObject *word) { return PyUnicode_GetLength(word) == 0; }

/* -- lanes ------------------------------------------------------------------------------------- */

/* Return the lane of a thread; 0: it has none yet. */
static long long lane_of(const Lines *self, unsigned long thread)
{
    for (int at = 0; at < self->threads; at++)
        if (self->thread_of[at] == thread)
            return self->lane_of[at];
    return 0;
}

/* Return the place of the lane that is free for longest. */
static int free_lane(const Lines *self)
{
    int found = 0;
    for (int at = 1; at < self->lanes; at++)
        if (self->ends[at] < self->ends[found])
            found = at;
    return found;
}

static int has_free_lane(const Lines *self, int64_t start_ns)
{
    return self->lanes == LANES || (self->lanes > 0 && self->ends[free_lane(self)] <= start_ns);
}

/* (thread, lane) */
static PyObject *know_thread(Lines *self, PyObject *args)
{
    unsigned long thread;
    long long lane;
    if (!PyArg_ParseTuple(args, "kL", &thread, &lane))
        return NULL;
    if (self->threads < MOST_THREADS) {
        self->thread_of[self->threads] = thread;
        self->lane_of[self->threads++] = lane;
    }
    Py_RETURN_NONE;
}

/* (start_ns, end_ns) -> the lane of a collective, and whether it is new */
static PyObject *collective_lane(Lines *self, PyObject *args)
{
    long long start_ns, end_ns;
    if (!PyArg_ParseTuple(args, "LL", &start_ns, &end_ns))
        return NULL;
    int is_new = !has_free_lane(self, start_ns), at = is_new ? self->lanes++ : free_lane(self);
    self->ends[at] = end_ns;
    return Py_BuildValue("iO", FIRST_LANE + at, is_new ? Py_True : Py_False);
}

/* -- lines ------------------------------------------------------------------------------------- */

/* Return a time since the start of the trace; 0, which means unknown, stays 0. */
static int64_t since(const Lines *self, int64_t time_ns)
{
    return time_ns ? time_ns - self->start_ns : 0;
}

static void put_key(Text *text, const Field *field)
{
    memcpy(text->at, field->key, sizeof field->key);
    text->at += field->length;
}

/* Write a field with what precedes it, unless it is as usual. */
static void put_field(const Lines *self, Text *text, const Field *field, const void *recorded,
                      long long lane)
{
    const void *at = (const char *)recorded + field->offset;
    long long number = 0;
    PyObject *word = NULL;
    switch (field->kind) {
    case A_NUMBER:
        number = *(const long long *)at;
        break;
    case A_MOMENT:
        number = *(const long long *)at;
        number = field->usual == EACH ? number - self->start_ns : since(self, number);
        break;
    case A_LANE:
        number = lane;
        break;
    case A_WORD:
        word = *(PyObject *const *)at;
        break;
    case A_FLAG:
        if (*(const char *)at) {
            put_key(text, field);
            PUT(text, "true");
        }
        return;
    default:
        return;
    }
    if (word == NULL ? number == field->usual : is_empty(word))
        return;
    put_key(text, field);
    if (word != NULL)
        put_word(text, word);
    else
        put_number(text, number);
}

/* Write the line of a record, on a lane of its own; `thread` is the lane of its thread. */
static void put_line(const Lines *self, Text *text, const Kind *kind, const void *recorded,
                     PyObject *name, long long thread, long long lane, int64_t start_ns,
                     int64_t end_ns)
{
    PUT(text, "{\"cat\":\"");
    put(text, kind->cat, strlen(kind->cat));
    PUT(text, "\",\"args\":"); /* the comma before the first field becomes its brace */
    char *brace = text->at;
    for (size_t at = 0; at < kind->count; at++)
        put_field(self, text, kind->fields + at, recorded, thread);
    *brace = '{';
    PUT(text, "},\"name\":");
    text->is_unusual |= is_empty(name);
    put_word(text, name);
    if (self->rank) {
        PUT(text, ",\"pid\":");
        put_number(text, self->rank);
    }
    PUT(text, ",\"tid\":");
    put_number(text, lane);
    PUT(text, ",\"ts\":");
    put_us(text, start_ns);
    PUT(text, ",\"dur\":");
    put_us(text, end_ns - start_ns);
    PUT(text, "},\n");
}

/* Write the line of a collective; return 0 if Python has to. */
static int put_call(Lines *self, Text *text, Call *call)
{
    int64_t issue_ns = call->issue_ns - self->start_ns, end_ns = since(self, call->done_ns);
    end_ns = end_ns ? end_ns : since(self, call->waited_ns);
    end_ns = end_ns ? end_ns : since(self, call->return_ns);
    long long thread = lane_of(self, call->thread);
    if (!thread || !has_free_lane(self, issue_ns))
        return 0;
    int at = free_lane(self);
    put_line(self, text, &call_kind, call, call->op, thread, FIRST_LANE + at, issue_ns, end_ns);
    if (!text->is_unusual)
        self->ends[at] = end_ns;
    return !text->is_unusual;
}

/* Write the line of a span; return 0 if Python has to. */
static int put_span(const Lines *self, Text *text, const Span *span)
{
    long long lane = lane_of(self, span->thread);
    if (!lane || !span->end_ns || span->kind->name == NULL)
        return 0;
    put_line(self, text, span->kind, span, span->kind->name(span), lane, lane,
             span->start_ns - self->start_ns, span->end_ns - self->start_ns);
    return !text->is_unusual;
}

/* Make room for one more line; -1: no memory. */
static int make_room(Lines *self, Text *text)
{
    Py_ssize_t used = text->at - self->buffer;
    if (self->capacity - used >= MOST_LINE)
        return 0;
    Py_ssize_t capacity = 2 * self->capacity + MOST_LINE;
    char *buffer = PyMem_Realloc(self->buffer, capacity);
    if (buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->buffer = buffer;
    self->capacity = capacity;
    text->at = buffer + used;
    return 0;
}

/* -- sums of what is written ------------------------------------------------------------------- */

typedef struct { /* of the records with one kind, name and thread */
    const char *kind;
    PyObject *name;
    unsigned long thread;
    int is_at_work; /* see AT_WORK */
    long long calls, nbytes;
    long long spent_ns; /* time in phases; time blocked in collectives */
} Sum;

typedef struct {
    long long step; /* of all records in the sums */
    int count;
    Sum of[MOST_SUMS];
} Sums;

static Sum of_call(const Call *call)
{
    PyObject *phase = call->phase;
    int is_at_work = PyUnicode_CompareWithASCIIString(phase, "forward") == 0 ||
                     PyUnicode_CompareWithASCIIString(phase, "step") == 0;
    return (Sum){"comm",           call->op, call->thread, is_at_work, 1, call->nbytes,
                 call->blocked_ns};
}

static Sum of_span(const Span *span)
{
    return (Sum){span->kind->cat, span->phase, span->thread, 0, 1, 0,
                 span->end_ns - span->start_ns};
}

/* Add a record. There must be room for one more sum. */
static void add(Sums *sums, Sum one)
{
    Sum *sum = sums->of, *end = sums->of + sums->count;
    while (sum != end && (sum->kind != one.kind || sum->name != one.name ||
                          sum->thread != one.thread || sum->is_at_work != one.is_at_work))
        sum++;
    if (sum == end) {
        *sum = (Sum){one.kind, held(one.name), one.thread, one.is_at_work, 0, 0, 0};
        sums->count++;
    }
    sum->calls += one.calls;
    sum->nbytes += one.nbytes;
    sum->spent_ns += one.spent_ns;
}

/* Return the sums as a tuple, and release their names. NULL: an error, or none are needed. */
static PyObject *taken(Sums *sums, int is_needed)
{
    PyObject *all = is_needed ? PyTuple_New(sums->count) : NULL;
    for (int at = 0; at < sums->count; at++) {
        Sum *sum = sums->of + at;
        PyObject *one = all == NULL ? NULL
                                    : Py_BuildValue("sOLLLkN", sum->kind, sum->name, sum->calls,
                                                    sum->nbytes, sum->spent_ns, sum->thread,
                                                    PyBool_FromLong(sum->is_at_work));
        if (one != NULL)
            PyTuple_SetItem(all, at, one);
        else
            Py_CLEAR(all);
        Py_DECREF(sum->name);
    }
    return all;
}

/* -- records ----------------------------------------------------------------------------------- */

/* Write the line of a record. 1: done, 0: nothing has changed (Python has to write it, it is of
   another step, or there are enough sums), -1: error. */
static int put_record(Lines *self, Text *text, PyObject *record, Sums *sums, int is_of_one_step)
{
    if (record == NULL || make_room(self, text) < 0)
        return -1;
    char *before = text->at;
    int is_call = Py_TYPE(record) == call_type, written = 0;
    if (is_call || Py_TYPE(record) == span_type) {
        long long step = is_call ? ((Call *)record)->step : ((Span *)record)->step;
        int is_next = !is_of_one_step || sums->count == 0 ||
                      (step == sums->step && sums->count < MOST_SUMS);
        if (is_next)
            written = is_call ? put_call(self, text, (Call *)record)
                              : put_span(self, text, (Span *)record);
        if (written > 0)
            sums->step = step;
        if (written > 0 && is_of_one_step)
            add(sums, is_call ? of_call((Call *)record) : of_span((Span *)record));
    }
    if (written <= 0)
        text->at = before;
    return written;
}

static int remove_first(PyObject *records, Py_ssize_t count)
{
    while (count-- > 0)
        if (PySequence_DelItem(records, 0) < 0)
            return -1;
    return 0;
}

/* (records, most, is_of_one_step) -> lines, their number, the step of the last one, and sums if all
   are to be of one step: see `Sum` of `dsprof.trace.writing.last_step` */
static PyObject *take(Lines *self, PyObject *args)
{
    PyObject *records;
    Py_ssize_t most, count = 0;
    Sums sums = {-1, 0, {{0}}};
    int written = 1, is_of_one_step;
    if (!PyArg_ParseTuple(args, "Onp", &records, &most, &is_of_one_step))
        return NULL;
    Py_ssize_t waiting = PyObject_Size(records);
    if (waiting < 0)
        return NULL;
    most = most < waiting ? most : waiting;
    Text text = {self->buffer, 0};
    for (; count < most && written > 0; count += written > 0) {
        PyObject *record = PySequence_GetItem(records, count);
        written = put_record(self, &text, record, &sums, is_of_one_step);
        Py_XDECREF(record);
    }
    PyObject *parts = taken(&sums, written >= 0);
    PyObject *lines = PyBytes_FromStringAndSize(self->buffer, text.at - self->buffer);
    PyObject *all = Py_BuildValue("NnLN", lines, count, sums.step, parts); /* NULL if a part is */
    if (all != NULL && remove_first(records, count) < 0) /* last: an error loses no record */
        Py_CLEAR(all);
    return all;
}

static int lines_init(Lines *self, PyObject *args, PyObject *kwargs)
{
    return PyArg_ParseTuple(args, "LL", &self->rank, &self->start_ns) ? 0 : -1;
}

static void lines_dealloc(Lines *self)
{
    PyMem_Free(self->buffer);
    free_of_heap_type((PyObject *)self);
}

static PyMethodDef lines_methods[] = {
    {"take", (PyCFunction)take, METH_VARARGS,
     "Remove records from the front of a deque, up to the first that Python has to write; return"
     " their lines, their number, the step of the last one, and sums if all are of one step."},
    {"collective_lane", (PyCFunction)collective_lane, METH_VARARGS,
     "Return the lane of a collective from its start to its end, and whether it is new."},
    {"know_thread", (PyCFunction)know_thread, METH_VARARGS, "Remember the lane of a thread."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot lines_slots[] = {
    {Py_tp_init, lines_init},
    {Py_tp_dealloc, lines_dealloc},
    {Py_tp_methods, lines_methods},
    {Py_tp_doc, "Writes lines: (rank, start_ns)."},
    {0, NULL},
};
static PyType_Spec lines_spec = {"dsprof.recording.recorder._hot.Lines", sizeof(Lines), 0,
                                 Py_TPFLAGS_DEFAULT, lines_slots};

int add_lines(PyObject *module) { return add_type(module, "Lines", &lines_spec) ? 0 : -1; }
