import os
from threading import Thread

import pytest

from dsprof.recording import group_store
from dsprof.recording.recorder.live_state import LiveState
from dsprof.recording.watchdog import exchange
from dsprof.recording.watchdog.exchange import Conclusion, Exchange, process_digest
from dsprof.trace.dumps import state_file
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, find_dump
from tests.factories.trace import header

ALL = b"".join(process_digest(header(rank=rank, world_size=3)) for rank in range(3))


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start two ranks of one node, and one of another; they share a folder, and have no store."""
    made, failures = [], []

    def start(note=print):
        os.utime(tmp_path, (1, 1))
        for rank, node in ((0, "a"), (1, "a"), (2, "b")):
            memory = tmp_path.parent / f"{tmp_path.name}-{node}"
            memory.mkdir(exist_ok=True)
            monkeypatch.setattr(exchange, "memory_folders", lambda memory=memory: iter([memory]))
            made.append(Exchange(header(rank=rank, world_size=3), tmp_path, note, failures.append))
        return made[-3:]

    yield start
    for one in made:
        one.close()
    assert not failures
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert all(name.startswith("hang-rank") for name in left)


@pytest.fixture
def ranks(start):
    return start()


def dump(rank, noticed_ns=100, **fields):
    return HangDump(header(rank=rank, world_size=3, versions={}), noticed_ns, 7, "waits", **fields)


def test_a_question_reaches_the_ranks_of_the_node_once(ranks):
    first, second, far = ranks
    assert not second.is_asked("here")
    first.ask(far=False)
    assert not far.is_asked("anywhere")
    assert second.is_asked("here")
    assert not second.is_asked("here")


def test_a_job_of_the_same_key_that_met_at_another_store_is_not_asked(start, monkeypatch):
    asking, *_ = start()
    monkeypatch.setattr(group_store, "store_address", lambda: "29812")
    near, _, far = start()
    asking.ask(far=False)
    asking.ask(far=True)
    assert not near.is_asked("here")
    assert not far.is_asked("anywhere")


def test_what_a_killed_run_of_the_same_key_has_left_is_not_read(ranks, tmp_path):
    killed, second, _ = ranks
    killed.ask(far=False)
    killed.tell(dump(0))
    killed.conclude(Conclusion("rank 1 is stopped", True, (1,), 0, 5, ALL), far=False)
    for path in tmp_path.with_name(f"{tmp_path.name}-a").iterdir():
        os.utime(path, (1, 1))
    assert not second.is_asked("here")
    assert second.told_here(0) == {}
    assert second.conclusion(far=False) is None


def test_what_a_killed_run_of_the_same_key_has_left_in_the_folder_is_not_read(start, tmp_path):
    """As the watchdog of another node would read it, who has no memory in common with it."""
    killed, *_ = start()
    killed.ask(far=True)
    killed.tell_nodes({rank: dump(rank) for rank in range(3)})
    killed.conclude(Conclusion("rank 1 is stopped", True, (1,), 0, 5, ALL), far=True)
    for path in tmp_path.glob(".*.hang"):
        os.utime(path, (1, 1))
    first, _, far = start()
    assert not far.is_asked("anywhere")
    assert far.told_by_nodes() == {}
    assert far.conclusion(far=True) is None
    first.ask(far=True)
    assert far.is_asked("in_folder")


def test_a_verdict_on_processes_of_another_start_is_ignored_and_noted(start):
    notes = []
    first, second, far = start(notes.append)
    others = b"".join(process_digest(header(rank=rank, world_size=3, pid=7)) for rank in range(3))
    first.conclude(Conclusion("rank 1 is stopped", True, (1,), 0, 5, others), far=True)
    for rank in (second, far):
        assert rank.conclusion(far=True) is None
    assert len(notes) == 2
    assert "processes of another start still run" in notes[0]


def test_of_two_starts_on_a_node_the_state_of_the_newer_one_counts(ranks, tmp_path, monkeypatch):
    first, _, _ = ranks
    memory = tmp_path.with_name(f"{tmp_path.name}-a")
    monkeypatch.setattr(exchange, "memory_folders", lambda: iter([memory]))
    monkeypatch.setattr("dsprof.recording.recorder.live_state.memory_folders", lambda: [memory])
    states = {pid: LiveState() for pid in (1, 2, 3)}
    for pid, start in ((1, 500), (2, 400), (3, 300)):
        states[pid].open(header(rank=1, world_size=3, pid=pid), lambda one: one)
        states[pid]._words[state_file.PROCESS_START] = start
    assert [state.header.pid for state in first.on_node()] == [1]
    for pid in (1, 3):  # they ended before this process began
        states[pid]._words[state_file.BEAT_NS] = first._born_ns - 1
    assert [state.header.pid for state in first.on_node()] == [2]
    assert [sign.pid for sign in first.signs()] == [2]
    for state in states.values():
        state.close()


def test_a_rank_of_another_job_of_the_same_key_is_not_looked_at(ranks, tmp_path, monkeypatch):
    memory = tmp_path.with_name(f"{tmp_path.name}-a")
    monkeypatch.setattr(exchange, "memory_folders", lambda: iter([memory]))
    monkeypatch.setattr("dsprof.recording.recorder.live_state.memory_folders", lambda: [memory])
    states = [LiveState(), LiveState()]
    for pid, state in enumerate(states, 1):
        of = header(rank=1, world_size=3, pid=pid)
        state.open(of, lambda one: one, group_store.number_of_run(of))
        monkeypatch.setattr(group_store, "store_address", lambda: "29812")
        state._words[state_file.PROCESS_START] = pid
    assert [state.header.pid for state in ranks[0].on_node()] == [1]
    for state in states:
        state.close()


def test_a_question_to_all_nodes_is_seen_in_the_folder(ranks):
    first, _, far = ranks
    first.ask(far=True)
    assert not far.is_asked("here")
    assert far.is_asked("in_folder")


def test_what_ranks_tell_reaches_their_node_and_by_a_leader_all(ranks):
    first, second, far = ranks
    second.tell(dump(1))
    assert first.told_here(0) == {1: dump(1)}
    assert far.told_here(0) == far.told_by_nodes() == {}
    first.tell_nodes({0: dump(0), 1: dump(1)})
    assert far.told_by_nodes() == {0: dump(0), 1: dump(1)}


def test_answers_that_were_read_in_an_earlier_inquiry_or_are_of_another_run_do_not_count(ranks):
    first, second, _ = ranks
    second.tell(dump(1))
    assert first.told_here(0)
    first.end()
    assert first.told_here(0) == {}
    second.tell(dump(1, noticed_ns=200))
    assert first.told_here(0) == {1: dump(1, noticed_ns=200)}
    assert first.told_here(8) == {}  # of its monotonic clock: it came late
    second.tell(HangDump(header(rank=1, run_key="another"), 300, 7, "it waits"))
    assert first.told_here(0) == {}


def test_what_a_rank_said_is_taken_back_once_training_goes_on(ranks):
    first, second, far = ranks
    second.tell(dump(1))
    second.tell_nodes({1: dump(1)})
    second.withdraw()
    assert first.told_here(0) == far.told_by_nodes() == {}


def test_who_cannot_speak_is_written_down_by_its_node(ranks, tmp_path):
    stopped = dump(1, process=ProcessState(state="T"), is_own=False)
    ranks[0].tell_nodes({1: stopped})
    assert find_dump(stopped.header, tmp_path) == stopped


def test_of_a_rank_the_latest_word_counts(ranks):
    first, second, far = ranks
    second.tell_nodes({1: dump(1, noticed_ns=200)})
    first.tell_nodes({1: dump(1, noticed_ns=100), 0: dump(0)})
    assert far.told_by_nodes()[1].noticed_epoch_ns == 200


def test_a_conclusion_is_heard_on_the_node_or_everywhere(ranks):
    first, second, far = ranks
    found = Conclusion("rank 1 sleeps", True, (1,), 0, 50, ALL)
    first.conclude(found, far=False)
    assert second.conclusion(far=False) == found
    assert far.conclusion(far=True) is None
    first.conclude(found, far=True)
    assert far.conclusion(far=True) == found
    far.end()
    assert far.conclusion(far=True) is None


def test_a_leader_takes_what_it_found_before_for_no_answer_to_its_next_inquiry(ranks):
    first, second, _ = ranks
    first.conclude(Conclusion("slow", False, (), 0, 50, ALL), far=False)
    assert second.conclusion(far=False)
    for one in (first, second):
        one.end()
        assert one.conclusion(far=True) is None


def test_without_threads_or_descriptors_nothing_is_known_until_there_are_some(ranks, monkeypatch):
    first, *_ = ranks
    questions, failures = group_store.Questions(print), []
    with monkeypatch.context() as context:
        context.setattr(Thread, "start", lambda _: throw(RuntimeError("none")))
        assert questions.within(lambda: 1) is None
        assert group_store.within(lambda: 1, failures.append) is None
        context.setattr(exchange.Path, "glob", lambda *_: throw(OSError("too many open files")))
        assert [*first.signs()] == []
    assert questions.within(lambda: 1) == 1
    assert not failures


def test_a_mistake_of_dsprof_is_told_and_no_silence_of_the_store(tmp_path, monkeypatch):
    mistake, failures = TypeError("an argument is missing"), []
    one = Exchange(header(rank=0, world_size=2), tmp_path, print, failures.append)
    monkeypatch.setattr(exchange, "connect", lambda _: throw(mistake))
    monkeypatch.setattr(exchange, "default_store", lambda: object())

    one.is_asked("anywhere")
    assert failures == [mistake]


def throw(error):
    raise error
