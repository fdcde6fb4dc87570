/* `KnownSites`: which call site is above a call, from the frames that a walk up the stack has found
   it by. `dsprof.hooks.call_sites` has the same in Python, and says what a path is. */

#include "hot.h"

enum { NEAR = 4, FAR = 8 }; /* the frames that a path is known by */
enum { PATHS = 256, FRAMES = 1024, PROBED = 8, MOST_HEIGHTS = 4, MOST_HEIGHT = 255 };

typedef struct {
    long at[2];                          /* code positions of two frames */
    unsigned char heights[MOST_HEIGHTS]; /* of sites, ascending; 0 after the last one */
} Path;

typedef struct { /* where a frame was, and its site; 0: it is of a library */
    PyObject *code; /* held, so that no other code gets its address */
    long at, site;
} KnownFrame;

typedef struct {
    PyObject_HEAD
    PyObject *getframe; /* of module sys */
    long long calls, look_every; /* on known paths */
    Path paths[PATHS + PROBED];
    KnownFrame frames[FRAMES + PROBED];
} KnownSites;

static PyTypeObject *known_sites_type;

/* Return the frame that is so far above the running one; NULL in an error, or if there is none. */
static PyObject *frame_above(const KnownSites *self, long height)
{
    PyObject *number = PyLong_FromLong(height);
    PyObject *frame =
        number == NULL ? NULL : PyObject_CallFunctionObjArgs(self->getframe, number, NULL);
    Py_XDECREF(number);
    if (frame == NULL && PyErr_ExceptionMatches(PyExc_ValueError))
        PyErr_Clear(); /* a short stack */
    return frame;
}

/* Return the code position of a frame; -1 in an error. */
static long position_of(PyObject *frame)
{
    PyObject *number = PyObject_GetAttr(frame, NAME("f_lasti"));
    long at = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    return at;
}

/* Find out by which two positions the path of the running function is known; 0 stands for one that
   a short stack does not have. -1: error. */
static int read_path(const KnownSites *self, long depth, long at[2])
{
    const long heights[] = {depth + NEAR, depth + FAR};
    at[0] = at[1] = 0;
    for (int one = 0; one < 2; one++) {
        PyObject *frame = frame_above(self, heights[one]);
        if (frame == NULL)
            return PyErr_Occurred() ? -1 : 0;
        at[one] = position_of(frame);
        Py_DECREF(frame);
        if (at[one] < 0) /* a frame of C code may have no position */
            return PyErr_Occurred() ? -1 : 0;
    }
    return 0;
}

/* Return the place of a path: its own, or the one to take for it. */
static Path *place_of_path(KnownSites *self, const long at[2])
{
    Path *first = self->paths + (((unsigned long)at[0] * 31 + (unsigned long)at[1]) & (PATHS - 1));
    for (Path *path = first; path != first + PROBED; path++)
        if (path->heights[0] == 0 || (path->at[0] == at[0] && path->at[1] == at[1]))
            return path;
    return first;
}

static KnownFrame *place_of_frame(KnownSites *self, const void *code, long at)
{
    uintptr_t hash = ((uintptr_t)code >> 4) + (uintptr_t)at;
    KnownFrame *first = self->frames + (hash & (FRAMES - 1));
    for (KnownFrame *frame = first; frame != first + PROBED; frame++)
        if (frame->code == NULL || (frame->code == code && frame->at == at))
            return frame;
    return first;
}

/* Return the place of the frame that is so far above the running one, and its code, owned; NULL in an
   error, or if there is no frame. */
static KnownFrame *known_frame(KnownSites *self, long height, PyObject **code, long *at)
{
    PyObject *frame = frame_above(self, height);
    if (frame == NULL)
        return NULL;
    *at = position_of(frame);
    *code = *at < 0 ? NULL : (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    Py_DECREF(frame);
    return *code == NULL ? NULL : place_of_frame(self, *code, *at);
}

/* Return the site of the call issued so far above the caller of the running function; 0: it has to
   be looked for, -1: error. */
long site_above(PyObject *known, long depth)
{
    long at[2];
    KnownSites *self = (KnownSites *)known;
    if (Py_TYPE(known) != known_sites_type) {
        PyErr_SetString(PyExc_TypeError, "sites must be found in KnownSites");
        return -1;
    }
    if (read_path(self, depth, at) < 0)
        return -1;
    const Path path = *place_of_path(self, at);
    if (path.heights[0] == 0 || path.at[0] != at[0] || path.at[1] != at[1] ||
        self->calls++ % self->look_every == 0)
        return 0;
    for (int one = 0; one < MOST_HEIGHTS && path.heights[one] != 0; one++) {
        PyObject *code;
        long position;
        const KnownFrame *frame = known_frame(self, depth + path.heights[one], &code, &position);
        if (frame == NULL)
            return PyErr_Occurred() ? -1 : 0;
        int is_known = frame->code == code && frame->at == position;
        Py_DECREF(code);
        if (!is_known || frame->site != 0)
            return is_known ? frame->site : 0;
    }
    return 0;
}

/* Note the site of a frame; 0: it is of a library. */
static int note_frame(KnownSites *self, long height, long site)
{
    PyObject *code;
    long at;
    KnownFrame *frame = known_frame(self, height, &code, &at);
    if (frame == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *old = frame->code;
    *frame = (KnownFrame){code, at, site};
    Py_XDECREF(old);
    return 0;
}

/* Note how far up sites are for a path, in one more case. */
static void note_height(Path *path, const long at[2], long height)
{
    int is_known = path->heights[0] != 0 && path->at[0] == at[0] && path->at[1] == at[1], one = 0;
    if (!is_known)
        *path = (Path){{at[0], at[1]}, {0}};
    while (one < MOST_HEIGHTS && path->heights[one] != 0 && path->heights[one] < height)
        one++;
    if (one == MOST_HEIGHTS || path->heights[one] == height)
        return;
    for (int later = MOST_HEIGHTS - 1; later > one; later--)
        path->heights[later] = path->heights[later - 1];
    path->heights[one] = (unsigned char)height;
}

/* (depth) -> the number of the site, or 0 */
static PyObject *find(PyObject *self, PyObject *number)
{
    long depth = PyLong_AsLong(number);
    long site = depth == -1 && PyErr_Occurred() ? -1 : site_above(self, depth);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(site);
}

/* (depth, height, site): what `Sites.look_above` has found */
static PyObject *learn(KnownSites *self, PyObject *args)
{
    long depth, height, site, at[2];
    if (!PyArg_ParseTuple(args, "lll", &depth, &height, &site))
        return NULL;
    if (height > 0 && height <= MOST_HEIGHT) {
        if (read_path(self, depth, at) < 0)
            return NULL;
        Path *path = place_of_path(self, at);
        note_height(path, at, height);
        for (int one = 0; one < MOST_HEIGHTS && path->heights[one] != 0; one++)
            if (path->heights[one] <= height &&
                note_frame(self, depth + path->heights[one],
                           path->heights[one] == height ? site : 0) < 0)
                return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *clear(KnownSites *self, PyObject *unused)
{
    for (Path *path = self->paths; path != self->paths + PATHS + PROBED; path++)
        *path = (Path){{0, 0}, {0}};
    for (KnownFrame *frame = self->frames; frame != self->frames + FRAMES + PROBED; frame++) {
        PyObject *code = frame->code;
        *frame = (KnownFrame){NULL, 0, 0};
        Py_XDECREF(code);
    }
    Py_RETURN_NONE;
}

/* (look_every) */
static PyObject *known_sites_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long long look_every;
    if (!PyArg_ParseTuple(args, "L", &look_every))
        return NULL;
    if (look_every < 1) {
        PyErr_SetString(PyExc_ValueError, "the stack must be walked every 1 or more calls");
        return NULL;
    }
    PyObject *sys = PyImport_ImportModule("sys");
    PyObject *getframe = sys == NULL ? NULL : PyObject_GetAttrString(sys, "_getframe");
    Py_XDECREF(sys);
    if (getframe == NULL)
        return NULL;
    KnownSites *self = (KnownSites *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        Py_DECREF(getframe);
        return NULL;
    }
    self->getframe = getframe;
    self->look_every = look_every;
    return (PyObject *)self;
}

static void known_sites_dealloc(KnownSites *self)
{
    Py_DECREF(clear(self, NULL));
    Py_CLEAR(self->getframe);
    free_of_heap_type((PyObject *)self);
}

static PyMethodDef known_sites_methods[] = {
    {"find", (PyCFunction)find, METH_O,
     "Return the site for `Sites.above`; 0: it has to be looked for."},
    {"learn", (PyCFunction)learn, METH_VARARGS, "Note where `Sites.look_above` has found a site."},
    {"clear", (PyCFunction)clear, METH_NOARGS, "Forget all sites."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot known_sites_slots[] = {
    {Py_tp_new, known_sites_new},
    {Py_tp_dealloc, known_sites_dealloc},
    {Py_tp_methods, known_sites_methods},
    {Py_tp_doc, "Which call site is above a call."},
    {0, NULL},
};
static PyType_Spec known_sites_spec = {"dsprof.recording.recorder._hot.KnownSites",
                                       sizeof(KnownSites), 0, Py_TPFLAGS_DEFAULT,
                                       known_sites_slots};

int add_known_sites(PyObject *module)
{
    known_sites_type = add_type(module, "KnownSites", &known_sites_spec);
    return known_sites_type == NULL ? -1 : 0;
}
