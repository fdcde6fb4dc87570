// The kernels of hooks/wire/dispatcher.py and hooks/wire/functional.py in C++, at BackendSelect in
// torch's dispatcher. A kernel in Python has all arguments converted for its call, back again for
// what is below, and the result likewise; that takes longer than the record. Here a call is passed
// on as it came, and Python gets what its record is made of.
//
// What is once in the dispatcher stays there and passes everything on: torch cannot take a kernel
// out without harm to a thread that is on its way to it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

int add_starvation(PyObject* module);  // starvation.cpp

namespace py = pybind11;
using c10::IValue;
using torch::jit::Stack;

namespace {

constexpr auto kKey = c10::DispatchKey::BackendSelect;

// What a kernel calls in Python: before and after what it passes on, and with an error of its own.
struct Callbacks {
  const py::object begin;
  const py::object note;
  const py::object fail;
};
using SharedCallbacks = std::shared_ptr<const Callbacks>;

// A call may end after Python, in a process that exits meanwhile.
void destroy(const Callbacks* callbacks) {
  if (Py_IsInitialized()) {
    py::gil_scoped_acquire gil;
    delete callbacks;
  }
}

// What one kernel is to tell, and whom. Lives as long as the process.
struct Slot {
  std::atomic<bool> is_watched{false};
  SharedCallbacks callbacks;  // read and set with the GIL
};

// As time.perf_counter_ns.
int64_t clock_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Needs the GIL. What Python raises is a signal handler's of the user (hooks swallow their own); it
// goes to whoever communicates, who may be a thread of autograd.
template <typename... Arguments>
py::object call(const py::object& function, const Arguments&... arguments) {
  auto answer = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(function.ptr(), arguments.ptr()..., nullptr));
  if (!answer) {
    python_error error;
    error.persist();
    throw error;
  }
  return answer;
}

// Needs the GIL. Nothing else that goes wrong here may reach whoever communicates.
template <typename Part>
void guard(const Callbacks& callbacks, const Part& part) {
  try {
    part();
  } catch (const python_error&) {
    throw;
  } catch (const std::exception& error) {
    call(callbacks.fail, py::str(error.what()));
  }
}

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

py::object tensors(const IValue& argument) {
  const bool has_some = argument.isTensor() || argument.isList();
  return has_some ? torch::jit::toPyObject(argument) : py::none();
}

// Where an operation's schema has what a record is made of.
struct Positions {
  explicit Positions(const c10::FunctionSchema& schema)
      : group(find(schema, {"process_group"})),
        is_async(find(schema, {"async_op", "asyncOp"})),
        reduce_op(find(schema, {"reduce_op"})),
        peer(find(schema, {"root_rank", "dst", "src"})) {
    TORCH_CHECK(group, schema.name(), " has no process group");
  }

  std::optional<int> group;
  std::optional<int> is_async;
  std::optional<int> reduce_op;
  std::optional<int> peer;

 private:
  static std::optional<int> find(
      const c10::FunctionSchema& schema, std::initializer_list<const char*> names) {
    for (const auto* name : names) {
      if (const auto index = schema.argumentIndexWithName(name)) {
        return index;
      }
    }
    return std::nullopt;
  }
};

// What the arguments tell of a collective.
struct Given {
  Given(const Positions& at, c10::ArrayRef<IValue> arguments)
      : first(arguments[0]),
        second(arguments.size() > 1 ? arguments[1] : IValue()),
        group(arguments[*at.group].toCustomClass<c10d::ProcessGroup>()) {
    if (at.is_async) {
      is_async = arguments[*at.is_async].toBool();
    }
    if (at.reduce_op) {
      const auto op = arguments[*at.reduce_op].toCustomClass<c10d::ReduceOp>();
      reduce_op = static_cast<int64_t>(op->op_);
    }
    if (at.peer) {
      peer = arguments[*at.peer].toInt();
    }
  }

  IValue first;
  IValue second;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::optional<bool> is_async;
  std::optional<int64_t> reduce_op;
  int64_t peer = -1;
};

class Collective final : public c10::OperatorKernel {
 public:
  Collective(const Slot& slot, const c10::FunctionSchema& schema) : slot_(slot), at_(schema) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    SharedCallbacks callbacks;
    std::optional<Given> given;
    if (slot_.is_watched) {
      py::gil_scoped_acquire gil;
      callbacks = slot_.callbacks;
      if (callbacks && call(callbacks->begin).is(py::bool_(true))) {
        const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
        guard(*callbacks, [&] { given.emplace(at_, arguments); });
      }
    }
    const auto issue_ns = clock_ns();
    op.redispatchBoxed(below(keys), stack);
    if (!given) {
      return;
    }
    const auto return_ns = clock_ns();
    py::gil_scoped_acquire gil;
    guard(*callbacks, [&] {
      c10::intrusive_ptr<c10d::Work> work;
      if (!op.schema().returns().empty()) {
        work = stack->back().toCustomClass<c10d::Work>();
      }
      call(
          callbacks->note, tensors(given->first), tensors(given->second), py::cast(given->group),
          py::bool_(given->is_async.value_or(bool(work))), py::cast(given->reduce_op),
          py::int_(given->peer), py::cast(work), py::int_(issue_ns), py::int_(return_ns));
    });
  }

 private:
  const Slot& slot_;
  const Positions at_;
};

class Wait final : public c10::OperatorKernel {
 public:
  Wait(const Slot& slot, const c10::FunctionSchema& /*schema*/) : slot_(slot) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const IValue tensor = torch::jit::last(*stack, 1)[0];
    SharedCallbacks callbacks;
    PyObject* token = nullptr;  // what Python wants to have back, if it is to know of this wait
    if (slot_.is_watched) {
      py::gil_scoped_acquire gil;
      callbacks = slot_.callbacks;
      if (callbacks) {
        guard(*callbacks, [&] {
          auto answer = call(callbacks->begin, tensors(tensor));
          token = answer.is(py::bool_(false)) ? nullptr : answer.release().ptr();
        });
      }
    }
    const auto start_ns = clock_ns();
    const auto note = [&](bool finished) {
      const auto end_ns = clock_ns();
      py::gil_scoped_acquire gil;
      const auto given_back = py::reinterpret_steal<py::object>(token);
      guard(*callbacks, [&] {
        call(
            callbacks->note, tensors(tensor), py::int_(start_ns), py::int_(end_ns), given_back,
            py::bool_(finished));
      });
    };
    try {
      op.redispatchBoxed(below(keys), stack);
    } catch (...) {
      if (token != nullptr) {
        note(false);
      }
      throw;
    }
    if (token != nullptr) {
      note(true);
    }
  }

 private:
  const Slot& slot_;
};

// Tells that something is about to communicate, until it is watched no more.
class Notice final : public c10::OperatorKernel {
 public:
  Notice(const Slot& slot, const c10::FunctionSchema& /*schema*/) : slot_(slot) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (slot_.is_watched) {
      py::gil_scoped_acquire gil;
      const auto callbacks = slot_.callbacks;
      if (callbacks) {
        guard(*callbacks, [&] { call(callbacks->begin); });
      }
    }
    op.redispatchBoxed(below(keys), stack);
  }

 private:
  const Slot& slot_;
};

// By namespace and name of the operation. Used with the GIL, as all that follows.
std::unordered_map<std::string, Slot*>& slots() {
  static auto* const all = new std::unordered_map<std::string, Slot*>();
  return *all;
}

template <typename Kernel>
Slot* put_in(const std::string& ns, const std::string& name) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((ns + "::" + name).c_str(), "");
  auto slot = std::make_unique<Slot>();
  auto kernel = std::make_unique<Kernel>(*slot, op.schema());
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL, ns, kKey, "dsprof/hooks/wire/kernels.cpp", __LINE__);
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  static_cast<void>(library.release());
  return slot.release();
}

template <typename Kernel>
void watch(
    const std::string& ns, const std::string& name, py::object begin, py::object note,
    py::object fail) {
  auto*& slot = slots()[ns + "::" + name];
  if (slot == nullptr) {
    slot = put_in<Kernel>(ns, name);
  }
  TORCH_CHECK(!slot->callbacks, ns, "::", name, " is watched already");
  slot->callbacks = SharedCallbacks(
      new Callbacks{std::move(begin), std::move(note), std::move(fail)}, destroy);
  slot->is_watched = true;
}

// Only what these callbacks watch: somebody else may do so by now.
void unwatch(const std::string& ns, const std::string& name, const py::object& begin) {
  auto* const slot = slots()[ns + "::" + name];
  if (slot != nullptr && slot->callbacks && slot->callbacks->begin.is(begin)) {
    slot->is_watched = false;
    slot->callbacks.reset();
  }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("watch_collective", &watch<Collective>);
  module.def("watch_wait", &watch<Wait>);
  module.def("watch_use", &watch<Notice>);
  module.def("unwatch", &unwatch);
  if (add_starvation(module.ptr()) != 0) {
    throw py::error_already_set();
  }
}
