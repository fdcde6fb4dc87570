import os

import pytest

from dsprof.recording.watchdog import exchange
from dsprof.recording.watchdog.exchange import Conclusion, Exchange
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, find_dump
from tests.factories.trace import header


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Two ranks of one node, and one of another; they share a folder, and have no store."""
    made = []
    for rank, node in ((0, "a"), (1, "a"), (2, "b")):
        memory = tmp_path / node
        memory.mkdir(exist_ok=True)
        monkeypatch.setattr(exchange, "memory_folders", lambda memory=memory: iter([memory]))
        made.append(Exchange(header(rank=rank, world_size=3), tmp_path))
    yield made
    for one in made:
        one.close()
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert all(name.startswith("hang-rank") for name in left)


def dump(rank, noticed_ns=100, **fields):
    return HangDump(header(rank=rank, world_size=3, versions={}), noticed_ns, 7, "waits", **fields)


def test_a_question_reaches_the_ranks_of_the_node_once(ranks):
    first, second, far = ranks
    assert not second.is_asked("here")
    first.ask(far=False)
    assert not far.is_asked("anywhere")
    assert second.is_asked("here")
    assert not second.is_asked("here")


def test_what_a_killed_run_of_the_same_key_has_left_is_not_read(ranks, tmp_path):
    killed, second, _ = ranks
    killed.ask(far=False)
    killed.tell(dump(0))
    killed.conclude(Conclusion("rank 1 is stopped", True, (1,), 0, 5), far=False)
    for path in (tmp_path / "a").iterdir():
        os.utime(path, (1, 1))
    assert not second.is_asked("here")
    assert second.told_here(0) == {}
    assert second.conclusion(far=False) is None


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
    found = Conclusion("rank 1 sleeps", True, (1,), 0, 50)
    first.conclude(found, far=False)
    assert second.conclusion(far=False) == found
    assert far.conclusion(far=True) is None
    first.conclude(found, far=True)
    assert far.conclusion(far=True) == found
    far.end()
    assert far.conclusion(far=True) is None


def test_a_leader_takes_what_it_found_before_for_no_answer_to_its_next_inquiry(ranks):
    first, second, _ = ranks
    first.conclude(Conclusion("slow", False, (), 0, 50), far=False)
    assert second.conclusion(far=False)
    for one in (first, second):
        one.end()
        assert one.conclusion(far=True) is None


def test_an_answer_that_does_not_come_in_time_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.01)
    held = exchange.threading.Event()

    assert exchange.within(lambda: held.wait(30)) is None
    held.set()
