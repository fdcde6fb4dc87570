/* The module `dsprof.recording.recorder._hot`. */

#include "hot.h"

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "dsprof.recording.recorder._hot", "Hooks that run often, in C.", -1,
};

enum { REVISION = 7 }; /* as in hot_state.py: what Python hands to C */

#define KIND(name, call) add_kind(module, #name, "dsprof.recording.recorder._hot." #name, call)

PyMODINIT_FUNC PyInit__hot(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL &&
        (PyModule_AddIntConstant(module, "REVISION", REVISION) < 0 || add_hot(module) < 0 ||
         add_records(module) < 0 || add_queue(module) < 0 || add_lines(module) < 0 ||
         KIND(CollectiveCall, (ternaryfunc)call_collective) < 0 ||
         KIND(WaitCall, (ternaryfunc)call_wait) < 0 ||
         KIND(RequestCall, (ternaryfunc)call_request) < 0 ||
         KIND(FlushCall, (ternaryfunc)call_flush) < 0 ||
         KIND(EpilogueCall, (ternaryfunc)call_epilogue) < 0 || add_fetching(module) < 0 ||
         KIND(FetchStartCall, (ternaryfunc)call_fetch_start) < 0 ||
         KIND(FetchStopCall, (ternaryfunc)call_fetch_stop) < 0 ||
         KIND(ReleaseCall, (ternaryfunc)call_release) < 0 || add_engine(module) < 0 ||
         KIND(EngineCall, (ternaryfunc)call_engine) < 0))
        Py_CLEAR(module);
    return module;
}
