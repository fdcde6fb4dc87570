/* The module `dsprof.recording.recorder._hot`. */

#include "hot.h"

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "dsprof.recording.recorder._hot", "Hooks that run often, in C.", -1,
};

enum { REVISION = 14 }; /* as in hot_state.py: what Python hands to C */

PyMODINIT_FUNC PyInit__hot(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL &&
        (PyModule_AddIntConstant(module, "REVISION", REVISION) < 0 ||
         PyModule_AddFunctions(module, library_functions) < 0 || add_hot(module) < 0 ||
         add_records(module) < 0 || add_queue(module) < 0 || add_lines(module) < 0 ||
         add_known_sites(module) < 0 || add_wrapper(module) < 0 || add_fetching(module) < 0 ||
         add_engine(module) < 0))
        Py_CLEAR(module);
    return module;
}
