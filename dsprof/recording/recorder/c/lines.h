/* Writes the fields of a line, in the order of `dsprof.trace.schema`. Fields with their default are
   left out. */

#ifndef DSPROF_LINES_H
#define DSPROF_LINES_H

#include "hot.h"

typedef struct Text {
    char *at;        /* the end; there is room for one more line */
    char is_unusual; /* Python has to write the line */
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
#define PUT_UNLESS(text, key, number, usual)                                                       \
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
