import os
import threading

import torch

from dsprof.recording.watchdog import look
from dsprof.trace.dumps.hang_dump import ProcessState, ThreadStack, store_call

SECOND_NS = 1_000_000_000


def test_stacks_show_where_each_thread_is():
    held, release = threading.Event(), threading.Event()

    def wait_here():
        held.set()
        release.wait()

    thread = threading.Thread(target=wait_here, name="loader")
    thread.start()
    held.wait()
    stacks = look.stacks()
    release.set()
    thread.join()

    assert stacks[0].name == "MainThread"
    assert "test_stacks_show" in " ".join(stacks[0].frames)
    [found] = [stack for stack in stacks if stack.name == "loader"]
    assert any(frame.endswith("wait_here") for frame in found.frames)


def test_a_thread_waits_whose_innermost_line_calls_a_wait_in_cpp():
    future, lock = torch.futures.Future(), threading.Lock()
    lock.acquire()

    def goes_on():
        lock.acquire()
        future.wait()

    threads = [threading.Thread(target=target) for target in (goes_on, future.wait)]
    for thread in threads:
        thread.start()
    while look.waiting_threads() != {threads[1].ident}:
        os.sched_yield()
    lock.release()
    while look.waiting_threads() != {thread.ident for thread in threads}:
        os.sched_yield()
    future.set_result(None)
    for thread in threads:
        thread.join()
    assert look.waiting_threads() == set()


def test_own_process_is_looked_at():
    found = look.process_state(os.getpid())

    assert found.state in "RSD"
    assert found.tracer == 0
    assert found.cpu_ns > 0


def test_a_process_that_is_not_there_is_gone(tmp_path):
    assert look.process_state(1 << 22).state == "X"


def process(root, **files):
    own = root / "proc" / "7"
    (own / "task" / "7").mkdir(parents=True)
    for name, text in files.items():
        (own / name).write_text(text)
    return root / "proc"


def stat(state="S", ticks=0):
    return f"7 (py (x) thon) {state} " + " ".join(["0"] * 10) + f" {ticks} 0 0 0 0 0 0 0 99"


def test_kills_for_memory_are_read_from_either_version_of_cgroups(tmp_path):
    for version, cgroup, folder, kills in (
        (1, "4:memory:/a\n", "memory/a", ("memory.oom_control", "under_oom 0\noom_kill 2\n")),
        (2, "0::/a\n", "a", ("memory.events", "oom 3\noom_kill 2\n")),
    ):
        root = tmp_path / str(version)
        proc = process(root, stat=stat(), cgroup=cgroup)
        place = root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True)
        (place / kills[0]).write_text(kills[1])
        (place.parent / kills[0]).write_text("oom_kill 9\n")

        assert look.process_state(7, proc).oom_kills == 2


def test_a_stopped_process_shows_its_state_and_what_it_waits_in(tmp_path):
    found = look.process_state(7, process(tmp_path, stat=stat("T"), wchan="do_signal_stop"))

    assert (found.state, found.waits_in) == ("T", "do_signal_stop")


def test_the_kernel_names_a_function_that_ends_in_a_zero(tmp_path):
    found = look.process_state(7, process(tmp_path, stat=stat(), wchan="futex_wait_q_0"))

    assert found.waits_in == "futex_wait_q_0"


def test_a_dead_process_is_gone_in_every_release_of_the_kernel(tmp_path):
    states = {
        letter: look.process_state(7, process(tmp_path / letter, stat=stat(letter))).state
        for letter in "ZXx"
    }

    assert states == dict.fromkeys("ZXx", "X")


def test_computing_reading_and_writing_are_activity():
    before = ProcessState(cpu_ns=0, io_bytes=0)

    assert not look.is_active(before, ProcessState(cpu_ns=10_000_000), SECOND_NS)
    assert look.is_active(before, ProcessState(cpu_ns=500_000_000), SECOND_NS)
    assert look.is_active(before, ProcessState(io_bytes=50_000_000), SECOND_NS)
    assert look.is_active(before, ProcessState(state="R"), SECOND_NS)  # others have the CPU


def test_a_prompt_of_pdb_is_a_debugger():
    frames = ("/usr/lib/python3.11/cmd.py:126 cmdloop", "/usr/lib/python3.11/pdb.py:90 x")

    assert look.is_debugged([ThreadStack("MainThread", frames)], ProcessState())
    assert look.is_debugged([], ProcessState(tracer=12))
    assert not look.is_debugged([ThreadStack("MainThread", ("a/train.py:1 f",))], ProcessState())


def test_a_checkpoint_is_being_saved_where_the_stack_says_so():
    def saves(*frames):
        return look.is_saving([ThreadStack("MainThread", frames)])

    assert saves("io.py:3 write", "/site/torch/serialization.py:987 save", "train.py:8 main")
    assert saves("/site/deepspeed/runtime/engine.py:3300 save_checkpoint", "train.py:8 main")
    assert saves("/site/torch/distributed/checkpoint/state_dict_saver.py:80 save")
    assert not saves("/site/torch/serialization.py:1400 load", "train.py:8 main")
    assert not look.is_saving([])


def test_a_rank_waits_for_the_store_in_calls_that_use_it():
    def waits(*frames):
        return store_call([ThreadStack("MainThread", frames)])

    c10d = "/site/torch/distributed/distributed_c10d.py"
    assert waits(f"{c10d}:9 _store_based_barrier", f"{c10d}:5 new_group", "a.py:1 f") == "new_group"
    assert waits("/site/torch/distributed/rendezvous.py:3 rendezvous", "a.py:1 f") == "rendezvous"
    assert waits(f"{c10d}:99 all_reduce", "a.py:1 new_group") == ""
    assert store_call([]) == ""
