/* What writes the lines of a trace in C: fields in the order of `dsprof.trace.schema`, without those
   that have their default. */

#ifndef DSPROF_LINES_H
#define DSPROF_LINES_H

#include "hot.h"

typedef struct Text {
    char *at;        /* there is room for a line behind it */
    char is_unusual; /* the line is left to Python */
} Text;

void put(Text *text, const char *part, size_t length);
void put_number(Text *text, int64_t number);
void put_word(Text *text, PyObject *word);
int is_empty(PyObject *word);

#define PUT(text, part) put(text, part, sizeof(part) - 1)
#define PUT_FIRST(text, key, number)                                                               \
    do {                                                                                           \
        PUT(text, "\"" key "\":");                                                                 \
        put_number(text, number);                                                                  \
    } while (0)
#define PUT_NEXT(text, key, number)                                                                \
    do {                                                                                           \
        PUT(text, ",\"" key "\":");                                                                \
        put_number(text, number);                                                                  \
    } while (0)
#define PUT_BUT(text, key, number, usual)                                                          \
    do {                                                                                           \
        if ((number) != (usual))                                                                   \
            PUT_NEXT(text, key, number);                                                           \
    } while (0)
#define PUT_WORD(text, key, word)                                                                  \
    do {                                                                                           \
        if (!is_empty(word)) {                                                                     \
            PUT(text, ",\"" key "\":");                                                            \
            put_word(text, word);                                                                  \
        }                                                                                          \
    } while (0)
#define PUT_FLAG(text, key, flag)                                                                  \
    do {                                                                                           \
        if (flag)                                                                                  \
            PUT(text, ",\"" key "\":true");                                                        \
    } while (0)

#endif
