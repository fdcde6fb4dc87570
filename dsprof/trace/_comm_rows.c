/* Parses the lines of finished collectives, nearly all of a native trace, into columns.

   It takes lines only as the writer writes them: no blanks, no escapes, ASCII, integers of up to 18
   digits, known keys. msgspec reads all others, and would make the same rows of what is taken here.
   The block ends with a zero byte, as every bytearray does, which no loop goes past. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MOST_WORDS 64
#define START "{\"cat\":\"comm\",\"args\":{"
#define KIND "{\"cat\":\"comm\""

enum kind { REQUIRED, NUMBER, FLAG, WORD, DECIMAL };

typedef struct { /* as `comm_rows._layout` packs it */
    int64_t missing; /* the value of a line without the field */
    char key[14];
    unsigned char length, kind;
} Field;

typedef struct {
    const char *start;
    size_t length;
} Word;

typedef struct {
    Word words[MOST_WORDS];
    int count;
} Words;

static const char *integer(const char *p, int64_t *value)
{
    int negative = *p == '-';
    const char *first = p += negative;
    int64_t sum = 0;
    while (*p >= '0' && *p <= '9' && p - first < 18)
        sum = 10 * sum + (*p++ - '0');
    if (p == first || (*first == '0' && (p - first > 1 || negative)))
        return NULL;
    *value = negative ? -sum : sum;
    return p;
}

static const char *decimal(const char *p)
{
    int64_t value;
    p = integer(p, &value);
    if (p == NULL || *p != '.')
        return p;
    const char *first = ++p;
    while (*p >= '0' && *p <= '9' && p - first < 18)
        p++;
    return p == first ? NULL : p;
}

static const char *flag(const char *p, int64_t *value)
{
    *value = *p == 't';
    const char *text = *value ? "true" : "false";
    size_t length = strlen(text);
    return strncmp(p, text, length) ? NULL : p + length;
}

/* `value` holds the code that the field had in the line before: nearly always the same. */
static const char *word(const char *p, Words *words, int64_t *value)
{
    if (*p++ != '"')
        return NULL;
    const char *start = p;
    while (*p >= ' ' && *p < 127 && *p != '"' && *p != '\\')
        p++;
    if (*p != '"')
        return NULL;
    size_t length = p - start;
    for (int i = -1; i < words->count; i++) {
        const Word *known = &words->words[i < 0 ? *value : i];
        if (known->length == length && !memcmp(known->start, start, length)) {
            *value = i < 0 ? *value : i;
            return p + 1;
        }
    }
    if (words->count == MOST_WORDS)
        return NULL;
    words->words[words->count] = (Word){start, length};
    *value = words->count++;
    return p + 1;
}

/* Parses the members of an object, from behind its bracket to behind the closing one. */
static const char *members(const char *p, const Field *fields, int count, int64_t **columns,
                           int64_t *codes, Words *words, Py_ssize_t row)
{
    uint64_t wanted = 0, found = 0;
    for (int i = 0; i < count; i++)
        wanted |= (uint64_t)(fields[i].kind == REQUIRED) << i;
    int next = 0;
    do {
        if (*p++ != '"')
            return NULL;
        int i = next, tried = 0;
        while (strncmp(p, fields[i].key, fields[i].length) || p[fields[i].length] != '"') {
            i = i + 1 < count ? i + 1 : 0;
            if (++tried == count)
                return NULL;
        }
        p += fields[i].length + 1;
        if (*p++ != ':')
            return NULL;
        int64_t value = codes[i];
        p = fields[i].kind == FLAG      ? flag(p, &value)
            : fields[i].kind == WORD    ? word(p, words, &value)
            : fields[i].kind == DECIMAL ? decimal(p)
                                        : integer(p, &value);
        if (p == NULL)
            return NULL;
        if (columns[i] != NULL)
            columns[i][row] = value;
        if (fields[i].kind == WORD)
            codes[i] = value;
        found |= (uint64_t)1 << i;
        next = i + 1 < count ? i + 1 : 0;
    } while (*p++ == ',');
    return p[-1] == '}' && (found & wanted) == wanted ? p : NULL;
}

static const char *line_start(const char *p)
{
    return p + strspn(p, "[ ,\r");
}

static const char *line_end(const char *p, const char *end)
{
    const char *found = memchr(p, '\n', end - p);
    return found == NULL ? end : found;
}

static int is_comm(const char *p)
{
    return !strncmp(p, KIND, strlen(KIND));
}

static Py_ssize_t count_rows(const char *p, const char *end)
{
    Py_ssize_t rows = 0;
    for (; p < end; p = line_end(p, end) + 1)
        rows += is_comm(line_start(p));
    return rows;
}

/* Parses one line into a row; false if it is none that the writer would write. */
static int parse_line(const char *p, const char *end, const Field *fields, int count, int inner,
                      int64_t **columns, int64_t *codes, Words *words, Py_ssize_t row)
{
    if (strncmp(p, START, strlen(START)))
        return 0;
    for (int i = 0; i < count; i++)
        if (columns[i] != NULL)
            columns[i][row] = fields[i].missing;
    p = members(p + strlen(START), fields, inner, columns, codes, words, row);
    if (p != NULL && *p == ',')
        p = members(p + 1, fields + inner, count - inner, columns + inner, codes + inner, words,
                    row);
    else if (p != NULL)
        p = *p == '}' ? p + 1 : NULL;
    if (p == NULL)
        return 0;
    p += *p == ',';
    return p + strspn(p, " \r") == end;
}

static PyObject *word_list(const Words *words)
{
    PyObject *list = PyList_New(words->count);
    for (int i = 0; list != NULL && i < words->count; i++) {
        PyObject *text =
            PyUnicode_FromStringAndSize(words->words[i].start, words->words[i].length);
        if (text == NULL || PyList_SetItem(list, i, text))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *parse(PyObject *module, PyObject *arguments)
{
    PyObject *block;
    const char *layout;
    Py_ssize_t layout_size;
    int inner, kept;
    if (!PyArg_ParseTuple(arguments, "Yy#ii", &block, &layout, &layout_size, &inner, &kept))
        return NULL;
    Field fields[64];
    int count = layout_size / sizeof(Field);
    if (count > 64 || inner < 1 || inner >= count || kept > count)
        return PyErr_Format(PyExc_ValueError, "a layout of %d fields", count);
    memcpy(fields, layout, count * sizeof(Field));

    const char *p = PyByteArray_AsString(block), *end = p + PyByteArray_Size(block);
    Py_ssize_t rows = count_rows(p, end), row = 0, others = 0;
    PyObject *table = PyByteArray_FromStringAndSize(NULL, kept * rows * sizeof(int64_t));
    PyObject *rest = PyByteArray_FromStringAndSize(" ", 1);
    PyObject *list = NULL;
    if (table == NULL || rest == NULL || PyByteArray_Resize(rest, end - p + 2))
        goto failed;
    int64_t *columns[64] = {0}, codes[64] = {0};
    for (int i = 0; i < kept; i++)
        columns[i] = (int64_t *)PyByteArray_AsString(table) + i * rows;
    Words words = {.words = {{"", 0}}, .count = 1};
    char *left = PyByteArray_AsString(rest) + 1;

    for (const char *stop; p < end; p = stop + 1) {
        stop = line_end(p, end);
        const char *start = line_start(p);
        if (is_comm(start)) {
            if (!parse_line(start, stop, fields, count, inner, columns, codes, &words, row++))
                goto refused;
        } else if (p + strspn(p, "[], \r") != stop) {
            memcpy(left, p, stop - p);
            left += stop - p;
            *left++ = stop < end ? '\n' : ' ';
            others++;
        }
    }
    list = word_list(&words);
    if (list == NULL || PyByteArray_Resize(rest, left - PyByteArray_AsString(rest)))
        goto failed;
    return Py_BuildValue("NNNn", table, list, rest, others);

refused:
    Py_DECREF(table);
    Py_DECREF(rest);
    Py_RETURN_NONE;
failed:
    Py_XDECREF(table);
    Py_XDECREF(rest);
    Py_XDECREF(list);
    return NULL;
}

static PyMethodDef methods[] = {
    {"parse", parse, METH_VARARGS,
     "parse(block, layout, inner, kept) -> (columns, words, other lines, their number), or None."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_comm_rows", NULL, 0, methods};

PyMODINIT_FUNC PyInit__comm_rows(void)
{
    return PyModule_Create(&definition);
}
