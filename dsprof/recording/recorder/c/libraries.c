/* Which libraries this process has loaded. The kernel takes a millisecond to say so. */

#include "hot.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>

typedef struct { /* paths, each with a line's end */
    char *text;
    size_t length, room;
} Paths;

/* Holds the loader's lock, so it must not wait for the interpreter's. */
static int add_path(struct dl_phdr_info *info, size_t size, void *data)
{
    Paths *paths = data;
    (void)size;
    size_t length = strlen(info->dlpi_name), needed = paths->length + length + 1;
    if (needed > paths->room) {
        size_t room = 2 * needed + 16384;
        char *text = realloc(paths->text, room);
        if (text == NULL)
            return -1;
        paths->text = text;
        paths->room = room;
    }
    memcpy(paths->text + paths->length, info->dlpi_name, length);
    paths->text[needed - 1] = '\n';
    paths->length = needed;
    return 0;
}

static PyObject *loaded_libraries(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    Paths paths = {NULL, 0, 0};
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = dl_iterate_phdr(add_path, &paths);
    Py_END_ALLOW_THREADS
    PyObject *text = failed ? PyErr_NoMemory()
                            : PyUnicode_DecodeFSDefaultAndSize(paths.text == NULL ? "" : paths.text,
                                                               (Py_ssize_t)paths.length);
    free(paths.text);
    return text;
}

PyMethodDef library_functions[] = {
    {"loaded_libraries", loaded_libraries, METH_NOARGS,
     "Return the paths of all loaded libraries, as the loader was given them, one a line."},
    {NULL, NULL, 0, NULL},
};
