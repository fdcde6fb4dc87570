// The kernels of hooks/c10d.py and hooks/functional.py in C++, at BackendSelect in torch's dispatcher.
// A kernel in Python has all arguments converted for its call, back again for what is below, and the
// result likewise; that takes longer than the record. Here a call is passed on as it came, and Python
// gets what its record is made of.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace py = pybind11;
using c10::IValue;

namespace {

constexpr auto kKey = c10::DispatchKey::BackendSelect;

// Where the schema has group, is_async, reduce_op and peer; 0 for nowhere, for tensors come first.
using Positions = std::array<size_t, 4>;

struct Watch {
  const Positions at;
  const py::object begin, note;  // the halves of a record, in Python
};
using SharedWatch = std::shared_ptr<const Watch>;

// A process that ends without taking its kernels back destroys them when Python is gone.
void destroy(const Watch* watch) {
  if (Py_IsInitialized()) {
    py::gil_scoped_acquire gil;
    delete watch;
  }
}

// As time.perf_counter_ns.
int64_t clock_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Needs the GIL. What Python raises is a signal handler's of the user (hooks swallow their own), and
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

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

py::object tensors(const IValue& argument) {
  const bool has_some = argument.isTensor() || argument.isList();
  return has_some ? torch::jit::toPyObject(argument) : py::none();
}

class Collective final : public c10::OperatorKernel {
 public:
  explicit Collective(SharedWatch watch) : watch_(std::move(watch)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto watch = watch_;  // recording, and this kernel with it, may end while a call blocks
    if (!begins(*watch)) {
      op.redispatchBoxed(below(keys), stack);
      return;
    }
    const auto given = torch::jit::last(*stack, op.schema().arguments().size());
    const auto [group_at, async_at, reduce_at, peer_at] = watch->at;
    const IValue first = given[0], second = given.size() > 1 ? given[1] : IValue();
    const auto group = given[group_at].toCustomClass<c10d::ProcessGroup>();
    const IValue is_async = async_at ? given[async_at] : IValue();
    const auto reduce_op =
        reduce_at ? IValue(int64_t(given[reduce_at].toCustomClass<c10d::ReduceOp>()->op_)) : IValue();
    const int64_t peer = peer_at ? given[peer_at].toInt() : -1;

    const auto issue_ns = clock_ns();
    op.redispatchBoxed(below(keys), stack);
    const auto return_ns = clock_ns();

    c10::intrusive_ptr<c10d::Work> work;
    if (!op.schema().returns().empty()) {
      work = stack->back().toCustomClass<c10d::Work>();
    }
    py::gil_scoped_acquire gil;
    call(
        watch->note, tensors(first), tensors(second), py::cast(group),
        py::bool_(is_async.isNone() ? bool(work) : is_async.toBool()),
        torch::jit::toPyObject(reduce_op), py::int_(peer), py::cast(work), py::int_(issue_ns),
        py::int_(return_ns));
  }

 private:
  static bool begins(const Watch& watch) {
    py::gil_scoped_acquire gil;
    return call(watch.begin).is(py::bool_(true));
  }

  const SharedWatch watch_;
};

class Wait final : public c10::OperatorKernel {
 public:
  explicit Wait(SharedWatch watch) : watch_(std::move(watch)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto watch = watch_;
    const IValue tensor = torch::jit::last(*stack, 1)[0];
    PyObject* const token = begin(*watch, tensor);
    if (token == nullptr) {
      op.redispatchBoxed(below(keys), stack);
      return;
    }
    const auto start_ns = clock_ns();
    const auto note = [&](bool finished) {
      const auto end_ns = clock_ns();
      py::gil_scoped_acquire gil;
      call(
          watch->note, tensors(tensor), py::int_(start_ns), py::int_(end_ns),
          py::reinterpret_steal<py::object>(token), py::bool_(finished));
    };
    try {
      op.redispatchBoxed(below(keys), stack);
    } catch (...) {
      note(false);
      throw;
    }
    note(true);
  }

 private:
  // A reference to what Python wants to have back after the wait; null if it is not to be noted.
  static PyObject* begin(const Watch& watch, const IValue& tensor) {
    py::gil_scoped_acquire gil;
    auto token = call(watch.begin, tensors(tensor));
    return token.is(py::bool_(false)) ? nullptr : token.release().ptr();
  }

  const SharedWatch watch_;
};

class Kernels {
 public:
  explicit Kernels(const std::string& space)
      : library_(std::make_unique<torch::Library>(
            torch::Library::IMPL, space, kKey, __FILE__, __LINE__)) {}

  template <typename Kernel>
  void add(const std::string& operation, Positions at, py::object begin, py::object note) {
    SharedWatch watch(new Watch{at, std::move(begin), std::move(note)}, destroy);
    library_->impl(
        operation.c_str(),
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(watch))));
  }

  void add_wait(const std::string& operation, py::object begin, py::object note) {
    add<Wait>(operation, {}, std::move(begin), std::move(note));
  }

  void destroy_all() {
    library_.reset();
  }

 private:
  std::unique_ptr<torch::Library> library_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<Kernels>(module, "Kernels", "A torch.library.Library of kernels in C++.")
      .def(py::init<const std::string&>())
      .def("add_collective", &Kernels::add<Collective>)
      .def("add_wait", &Kernels::add_wait)
      .def("_destroy", &Kernels::destroy_all);
}
