// A thread that is not Python's. Where a call holds the interpreter lock and does not release it, no
// Python runs, that of dsprof included. The thread notices it by the sign of life in the live state,
// and writes there where the threads of Python are.
//
// Frames may be read without the lock only while nobody runs Python. That is likely then, but not
// certain: so a process of its own reads them, in the memory of this one. If it is killed for what it
// read, training goes on. It has no parent to notify, and handles its own signals: a core dump of it
// would end, before Linux 5.16, all processes with this memory.

#include <Python.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kTickNs = kSecondNs / 2;
constexpr int64_t kPatienceNs = kSecondNs;  // for whoever reads the frames
constexpr size_t kStackBytes = 1 << 18;

// What faulthandler writes; exported by some releases of Python only.
using DumpThreads = const char* (*)(int, PyInterpreterState*, PyThreadState*);
using CurrentThread = PyThreadState* (*)();

struct Watch {
  ~Watch() {
    if (words != MAP_FAILED) {
      munmap(words, bytes);
    }
    close(file);
  }

  int file = -1;
  long long bytes = 0, beat = 0, starved_after = 0, stacks_ns = 0, stacks = 0;
  void* words = MAP_FAILED;
  DumpThreads dump = nullptr;
  CurrentThread holder = nullptr;
  PyInterpreterState* interpreter = nullptr;
  char* stack = nullptr;  // of the process that reads the frames

  int64_t* word(long long number) const { return static_cast<int64_t*>(words) + number; }
  int64_t read(long long number) const { return __atomic_load_n(word(number), __ATOMIC_ACQUIRE); }
};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecondNs + now.tv_nsec;
}

void pause_ns(int64_t duration_ns) {
  const timespec duration{duration_ns / kSecondNs, duration_ns % kSecondNs};
  nanosleep(&duration, nullptr);
}

void leave(int /*signal*/) { syscall(SYS_exit_group, 1); }

int read_frames(void* given) {
  const auto& watch = *static_cast<const Watch*>(given);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction action{};
  action.sa_handler = leave;
  sigset_t deadly;
  sigemptyset(&deadly);
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGXFSZ}) {
    sigaction(number, &action, nullptr);
    sigaddset(&deadly, number);
  }
  sigprocmask(SIG_UNBLOCK, &deadly, nullptr);
  const rlimit size{static_cast<rlim_t>(watch.bytes), static_cast<rlim_t>(watch.bytes)};
  setrlimit(RLIMIT_FSIZE, &size);
  watch.dump(watch.file, watch.interpreter, watch.holder != nullptr ? watch.holder() : nullptr);
  syscall(SYS_exit_group, 0);
  return 0;
}

void write_stacks(const Watch& watch) {
  __atomic_store_n(watch.word(watch.stacks_ns), 0, __ATOMIC_RELEASE);
  std::memset(static_cast<char*>(watch.words) + watch.stacks, 0, watch.bytes - watch.stacks);
  lseek(watch.file, watch.stacks, SEEK_SET);
  const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED;
  const int reader =
      clone(read_frames, watch.stack + kStackBytes, flags, const_cast<Watch*>(&watch));
  if (reader < 0) {
    return;
  }
  const auto start_ns = now_ns();
  while (waitpid(reader, nullptr, __WCLONE | WNOHANG) == 0) {
    if (now_ns() - start_ns > kPatienceNs) {
      kill(reader, SIGKILL);
    }
    pause_ns(kSecondNs / 1000);
  }
  __atomic_store_n(watch.word(watch.stacks_ns), start_ns, __ATOMIC_RELEASE);
}

bool is_removed(int file) {
  struct stat status{};
  return fstat(file, &status) != 0 || status.st_nlink == 0;
}

// Until the file is removed, as it is at the end of a trace.
void* run(void* given) {
  const std::unique_ptr<Watch> watch(static_cast<Watch*>(given));
  auto last_ns = now_ns(), awake_ns = last_ns;
  int64_t written_for = 0;
  while (!is_removed(watch->file)) {
    pause_ns(kTickNs);
    const auto ns = now_ns();
    if (ns - last_ns > 3 * kTickNs) {
      awake_ns = ns;  // it was stopped itself, or the machine is too busy to tell
    }
    last_ns = ns;
    const auto after_ns = watch->read(watch->starved_after), beat_ns = watch->read(watch->beat);
    const auto since_ns = std::max(beat_ns, awake_ns);
    if (after_ns > 0 && beat_ns != written_for && ns - since_ns > after_ns) {
      written_for = beat_ns;
      write_stacks(*watch);
    }
  }
  munmap(watch->stack, kStackBytes);
  return nullptr;
}

bool start(Watch* watch) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
  pthread_t thread;
  const bool has_started = pthread_create(&thread, nullptr, run, watch) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (has_started) {
    pthread_setname_np(thread, "dsprof-starved");
    pthread_detach(thread);
  }
  return has_started;
}

// (path, bytes, beat, starved_after, stacks_ns, stacks) -> whether frames can be read
PyObject* watch_starvation(PyObject* /*module*/, PyObject* arguments) {
  auto watch = std::make_unique<Watch>();
  auto& w = *watch;
  const char* path = nullptr;
  if (!PyArg_ParseTuple(
          arguments, "sLLLLL", &path, &w.bytes, &w.beat, &w.starved_after, &w.stacks_ns,
          &w.stacks)) {
    return nullptr;
  }
  w.dump = reinterpret_cast<DumpThreads>(dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
  w.holder = reinterpret_cast<CurrentThread>(dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet"));
  w.interpreter = PyInterpreterState_Main();
  if (w.dump == nullptr) {
    Py_RETURN_FALSE;
  }
  w.file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  w.words = mmap(nullptr, w.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w.file, 0);
  auto* const stack = mmap(
      nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (w.file < 0 || w.words == MAP_FAILED || stack == MAP_FAILED) {
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  w.stack = static_cast<char*>(stack);
  if (!start(watch.get())) {
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  static_cast<void>(watch.release());
  Py_RETURN_TRUE;
}

PyMethodDef kMethods[] = {
    {"watch_starvation", watch_starvation, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_starvation(PyObject* module) { return PyModule_AddFunctions(module, kMethods); }
