/* What the hooks that run most often share, in C: the state that they read at each call, and what
   they do with it. `dsprof.recording.recorder.hot_state` has the same in Python, for where no
   compiler was; each wrapper here leaves to the hook in Python whatever is not the usual case.

   A training step evicts the caches between two hooks, so that a hook costs the memory it touches:
   hence structs, and no attribute of a Python object where a field of ours can have it. */

#ifndef DSPROF_HOT_H
#define DSPROF_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>

#ifndef __linux__
#error "the clock of Python is known to be CLOCK_MONOTONIC on Linux only"
#endif

/* A collective in the live state: the words of `dsprof.trace.dumps.state_file`. */
enum word { ID, SEQ, WHERE, KIND, NBYTES, ISSUE_NS, SITE, CALL_STEP, DONE_NS, THREAD, CALL_WORDS };
enum { UNFOLLOWED = 1, MOST_RECORDS = 200000 };

typedef struct { /* where the live state has what, in words */
    long long ring, calls, passed, groups, old, old_calls, lost;
} Layout;

typedef struct {
    PyObject_HEAD
    long long request, flush, fetch, wire_ops, coalesced, site;
    PyObject *requested;
} Context;

typedef struct Behalf {
    unsigned long thread;
    Context *context;
} Behalf;

typedef struct {
    PyObject_HEAD
    char recording, in_epilogue; /* of backward, which flushes what buckets still hold */
    int64_t *words;                       /* the live state; NULL: none is kept */
    long long step, micro_step, engine, site; /* of the scope */
    long long step_start_ns, moves;           /* of the scope, how often it has changed */
    long long calls, samples, sampled_ns, longest_ns; /* of Cost */
    Layout layout;
    PyObject *device, *followers; /* None and empty, unless collectives are more than the host's */
    PyObject *ids;                /* an iterator */
    PyObject *works, *blocking, *completed; /* of InFlight */
    PyObject *keep;               /* takes the record of a Work that nobody has waited for */
    PyObject *records;            /* of Outbox: Records */
    PyObject *overflow;           /* takes a record when there are too many */
    PyObject *phases;             /* begun and not ended: a list of Span */
    PyObject *phase;              /* of the scope */
    PyObject *state;              /* owns the memory of `words` */
    PyObject *work, *call;        /* issued last and not yet in `works`; NULL: none */
    PyObject *scope;              /* NULL until somebody asks for it */
    struct Behalf *behalves;      /* of each thread with a context other than `nobody` */
    Py_ssize_t behalf_count, behalf_room;
} Hot;

typedef struct { /* a ring buffer; `room` is a power of two */
    PyObject_HEAD
    PyObject **ring;
    Py_ssize_t first, count, room;
} Records;

typedef struct { /* of a hook */
    PyObject_HEAD
    char broken, in_python; /* it is inert; it leaves nothing to C */
} Switch;

typedef struct { /* a collective; of `Collective`, what a hook in C or a wait may change */
    PyObject_HEAD
    long long id, issue_ns, pending_ns, done_ns, wait_ns, waited_ns, blocked_ns, waits;
    unsigned long thread;
    char is_async, captured, is_estimated;
    long long group, seq, nbytes, elements, tensors, request, site, step, micro_step, engine, flush;
    long long fetch, coalesced, return_ns, stream;
    PyObject *op, *dtype, *requested, *reduce_op, *phase, *outputs;
} Call;

typedef struct Span { /* a phase, a step, a flush or a fetch */
    PyObject_HEAD
    const struct Kind *kind;
    long long id, elements, start_ns, end_ns, step, micro_step, engine, own[6];
    unsigned long thread;
    char is_again; /* of a fetch */
    PyObject *phase, *text; /* of the scope; a dtype, or the source of steps */
    PyObject *what;         /* the kind of a fetch, or the cause of a flush */
} Span;

/* How a struct has a field of the record, and when a line shows it. */
enum field_kind {
    A_NUMBER,    /* long long: unless it is the usual one */
    A_MOMENT,    /* the same, since the start of the trace; 0, which means unknown, stays 0 */
    A_FLAG,      /* char: if it is true */
    A_WORD,      /* str: unless it is empty */
    AN_OBJECT,   /* in no line */
    A_THREAD,    /* unsigned long; in no line */
    A_LANE,      /* the same; as the lane of the thread, if it has one */
    MINUS_ONE, NO_TEXT, ON_WIRE, /* equal in all that C records; in no line */
};
enum { EACH = INT32_MIN }; /* no usual number: each line has the field */

typedef struct {
    char key[24]; /* in a line; of one length, to be copied at once */
    unsigned char length, kind;
    unsigned short offset;
    int usual;
} Field;

#define FIELD(of, kind, key, place, usual)                                                         \
    {",\"" key "\":", sizeof ",\"" key "\":" - 1, kind, offsetof(of, place), usual}
#define CONSTANT(kind) {"", 0, kind, 0, 0}
#define SPAN_NUMBER(key, place, usual) FIELD(Span, A_NUMBER, key, place, usual)
#define SPAN_WORD(key, place) FIELD(Span, A_WORD, key, place, 0)
#define SPAN_TIMES                                                                                 \
    FIELD(Span, A_MOMENT, "start_ns", start_ns, EACH), FIELD(Span, A_MOMENT, "end_ns", end_ns, EACH)
#define SPAN_STEP SPAN_NUMBER("step", step, -1), SPAN_NUMBER("micro_step", micro_step, 0)
#define SPAN_ENGINE SPAN_NUMBER("engine", engine, -1)
#define SPAN_THREAD FIELD(Span, A_THREAD, "", thread, 0)

typedef struct Kind { /* of records, whose fields are in the order of `dsprof.trace.schema` */
    const char *cat;   /* of lines */
    PyObject **record; /* the struct of the schema */
    const Field *fields;
    size_t count;
    PyObject *(*name)(const Span *); /* of a span's line, borrowed; NULL: Python writes the line */
} Kind;

#define KIND(cat, record, fields, name) {cat, &record, fields, sizeof fields / sizeof *fields, name}

enum { MOST_HELD = 17, MOST_NUMBERS = 4, MOST_EVENTS = 8 };

typedef struct { /* what a call gives: its arguments by position, and after them those by name */
    PyObject *const *args;
    Py_ssize_t count;
    PyObject *names; /* a tuple, or NULL */
} Given;

typedef struct Wrapper Wrapper;
typedef PyObject *Called(Wrapper *self, const Given *given);

struct Wrapper { /* what stands for a function on its class, in an `instancemethod` */
    PyObject_HEAD
    PyObject *(*vectorcall)(Wrapper *, PyObject *const *, size_t, PyObject *);
    Called *called;
    Hot *hot;
    Switch *on;
    PyObject *original, *python; /* the function, and the hook in Python around it */
    union { /* what a kind of wrapper has seen last */
        struct {
            PyObject *dtype, *dtype_name; /* borrowed from `DTYPES` */
            PyTypeObject *options;
            long long item_bytes, kind, group;
            int names_op, has_async, has_op;
        } collective;
        struct {
            PyObject *optimizer; /* borrowed, and only compared */
            long long step_start_ns, capacity;
            int stage, has_slots;
        } flush;
        struct {
            PyObject *names[MOST_EVENTS]; /* kept for good */
            char kinds[MOST_EVENTS];
        } fetch;
    } seen;
    long long numbers[MOST_NUMBERS]; /* what else a kind of wrapper needs */
    PyObject *held[MOST_HELD];
    PyObject *fail;  /* Hook.fail */
    PyObject *weakrefs;
    char is_cleared; /* by the garbage collector */
};

typedef struct { /* what a call has raised, or nothing */
    PyObject *type, *error, *traceback;
} Raised;

/* hot.c */
extern PyTypeObject *hot_type, *switch_type, *context_type, *call_type;
extern PyTypeObject *span_type;
extern PyObject *scope_record, *collective_record, *phase_record, *step_record;
extern PyObject *flush_record, *fetch_record;
extern PyObject *no_text;
extern Context *nobody;
int add_hot(PyObject *module);
PyTypeObject *add_type(PyObject *module, const char *name, PyType_Spec *spec);
void free_of_heap_type(PyObject *self);
void move_scope(Hot *hot, PyObject *phase, const long long numbers[4]);
PyObject *scope_of(Hot *hot); /* borrowed */
int64_t now_ns(void);
int64_t thread_cpu_ns(void);
PyObject *held(PyObject *object);
int is_true(PyObject *owner, PyObject *name);
PyObject *thread_key(void);
int next_of(PyObject *iterator, long long *number);
PyObject *popped(PyObject *dict, PyObject *key);
Context *new_context(const Context *like);
Context *current(const Hot *hot); /* borrowed */
int become(Hot *hot, Context *context);
int add_record(Hot *hot, PyObject *record);
void tell_issue(const Hot *hot, const int64_t call[CALL_WORDS]);
void tell_done(const Hot *hot, int64_t id, int64_t time_ns);
int get_number(PyObject *record, PyObject *name, int64_t *value);
PyObject *made_of(PyObject *record, Py_ssize_t count, PyObject *const *owned);

/* records.c */
int add_records(PyObject *module);
Call *new_call(void);
Span *new_span(const Hot *hot, const Kind *kind); /* in the scope of now */
extern const Kind call_kind;
PyObject *made_record(PyObject *recorded);

/* queue.c */
int add_queue(PyObject *module);
extern PyTypeObject *records_type;
int append_record(Records *self, PyObject *record);

/* lines.c */
int add_lines(PyObject *module);

/* progress.c */
extern PyMethodDef progress_methods[];
int is_in_phase(const Hot *hot, PyObject *phase, long long engine);
Span *enter_phase(Hot *hot, PyObject *phase, long long engine, long long micro_step,
                  long long site);
int leave_phase(Hot *hot, PyObject *entered);
void count_micro_step(Hot *hot);

/* libraries.c */
extern PyMethodDef library_functions[];

/* sites.c */
int add_known_sites(PyObject *module);
long site_above(PyObject *known, long depth);

/* in_flight.c */
int poll_works(Hot *hot);
int follow(Hot *hot, PyObject *work, Call *call);
int settle(Hot *hot);

/* wrapper.c */
int add_wrapper(PyObject *module);
PyObject *pass_on(PyObject *function, const Given *given);
PyObject *names_of(const Given *given);
PyObject *positions_of(const Given *given);
int is_plain(const Given *given);
int is_live(const Wrapper *self);
int give_up(Wrapper *self);
PyObject *take_error(void);
Raised put_aside(void);
PyObject *finish(Wrapper *self, PyObject *result, Raised raised, int failed);

/* One kind of wrapper each. */
Called call_collective, call_wait, call_request, call_flush, call_epilogue;
Called call_fetch_start, call_fetch_stop, call_release, call_engine;
int add_fetching(PyObject *module); /* the state of fetches */
int add_engine(PyObject *module); /* its state */

/* An interned string, made once. If memory runs out it is None, and looking that up is an error. */
#define NAME(text)                                                                                 \
    ({                                                                                             \
        static PyObject *name;                                                                     \
        if (name == NULL)                                                                          \
            name = PyUnicode_InternFromString(text);                                               \
        name == NULL ? Py_None : name;                                                             \
    })

#endif
