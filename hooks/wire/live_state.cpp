// `writers` of dsprof/recording/recorder/live_state.py in C++: what each collective writes into the live state
// of its rank. dsprof/trace/dumps/state_file.py has the layout.

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace {

enum Word { kId, kSeq, kWhere, kKind, kBytes, kIssued, kSite, kStep, kDone, kThread, kCallWords };

constexpr const char* kName = "dsprof.live_state";

struct State {
  ~State() { PyBuffer_Release(&buffer); }

  Py_buffer buffer{};
  int64_t* words = nullptr;
  long long ring = 0, calls = 0, passed = 0, groups = 0, old = 0, old_calls = 0, lost = 0;

  int64_t* place(int64_t number) const { return words + ring + (number & (calls - 1)) * kCallWords; }

  // Moves a call in flight to a place of its own, before a later one takes its place.
  void keep(const int64_t* call) const {
    auto* const end = words + old + old_calls * kCallWords;
    for (auto* at = words + old; at != end; at += kCallWords) {
      if (at[kDone] || !at[kId]) {
        std::copy(call, call + kCallWords, at);
        return;
      }
    }
    ++words[lost];
  }
};

// The process may end at any instruction: the compiler must not change the order.
void store(int64_t* word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

State* state_of(PyObject* capsule) {
  return static_cast<State*>(PyCapsule_GetPointer(capsule, kName));
}

template <int Count>
bool read(PyObject* const* arguments, Py_ssize_t count, int64_t (&numbers)[Count]) {
  if (count != Count) {
    PyErr_Format(PyExc_TypeError, "takes %d numbers", Count);
    return false;
  }
  for (int i = 0; i < Count; ++i) {
    numbers[i] = PyLong_AsLongLong(arguments[i]);
    if (numbers[i] == -1 && PyErr_Occurred()) {
      return false;
    }
  }
  return true;
}

PyObject* issue(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
  int64_t call[kCallWords];
  if (!read(arguments, count, call)) {
    return nullptr;
  }
  const auto& state = *state_of(capsule);
  auto* const at = state.place(call[kId]);
  if (at[kDone]) {
    const auto group = at[kWhere] & 0xffffffff;
    if (group < state.groups) {
      auto& passed = state.words[state.passed + group];
      passed = std::max(passed, at[kSeq]);
    }
  } else if (at[kId]) {
    state.keep(at);
  }
  store(at + kThread, 0);
  for (int word = 0; word < kCallWords; ++word) {
    store(at + word, call[word]);
  }
  Py_RETURN_NONE;
}

PyObject* done(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
  int64_t told[2];
  if (!read(arguments, count, told)) {
    return nullptr;
  }
  const auto& state = *state_of(capsule);
  auto* at = state.place(told[0]);
  if (at[kId] != told[0]) {
    auto* const end = state.words + state.old + state.old_calls * kCallWords;
    for (at = state.words + state.old; at != end && at[kId] != told[0];) {
      at += kCallWords;
    }
    if (at == end) {
      Py_RETURN_NONE;
    }
  }
  store(at + kDone, told[1]);
  Py_RETURN_NONE;
}

PyMethodDef kIssue = {
    "issue", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(issue)), METH_FASTCALL, nullptr};
PyMethodDef kDoneDefinition = {
    "done", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(done)), METH_FASTCALL, nullptr};

// (words, ring, calls, passed, groups, old, old_calls, lost) -> (issue, done)
PyObject* writers(PyObject* /*module*/, PyObject* arguments) {
  auto state = std::make_unique<State>();
  auto& s = *state;
  if (!PyArg_ParseTuple(
          arguments, "w*LLLLLLL", &s.buffer, &s.ring, &s.calls, &s.passed, &s.groups, &s.old,
          &s.old_calls, &s.lost)) {
    return nullptr;
  }
  s.words = static_cast<int64_t*>(s.buffer.buf);
  auto* const capsule = PyCapsule_New(state.get(), kName, [](PyObject* held) { delete state_of(held); });
  if (capsule == nullptr) {
    return nullptr;
  }
  static_cast<void>(state.release());
  auto* const both = Py_BuildValue(
      "(NN)", PyCFunction_New(&kIssue, capsule), PyCFunction_New(&kDoneDefinition, capsule));
  Py_DECREF(capsule);
  return both;
}

PyMethodDef kMethods[] = {
    {"live_state_writers", writers, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_live_state(PyObject* module) { return PyModule_AddFunctions(module, kMethods); }
