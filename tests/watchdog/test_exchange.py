import pytest

from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, find_dump
from dsprof.watchdog import exchange
from dsprof.watchdog.exchange import Exchange
from tests.factories.trace import header


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Two ranks of one node that have no store."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(exchange, "memory_folders", lambda: iter([memory]))
    made = [Exchange(header(rank=rank), tmp_path) for rank in range(2)]
    yield made
    for one in made:
        one.close()
    assert [*memory.iterdir()] == []


def dump(rank, noticed_ns=100, **fields):
    return HangDump(header(rank=rank), noticed_ns, 7, "it waits", **fields)


def test_a_question_reaches_the_ranks_of_the_node_once(ranks):
    first, second = ranks
    assert not second.is_asked(far=False)
    first.ask()
    assert second.is_asked(far=False)
    second.tell(dump(1))
    assert not second.is_asked(far=False)


def test_what_ranks_tell_is_gathered_without_a_store(ranks):
    first, second = ranks
    second.tell(dump(1))

    assert first.gather(0, {}) == {1: dump(1)}


def test_answers_of_an_earlier_silence_or_another_run_do_not_count(ranks):
    first, second = ranks
    second.tell(dump(1, noticed_ns=10))
    assert first.gather(50, {}) == {}
    second.tell(HangDump(header(rank=1, run_key="another"), 100, 7, "it waits"))
    assert first.gather(50, {}) == {}


def test_who_cannot_speak_is_shown_by_a_rank_that_sees_it(ranks, tmp_path):
    stopped = dump(1, process=ProcessState(state="T"))

    assert ranks[0].gather(0, {1: stopped}) == {1: stopped}
    assert find_dump(stopped.header, tmp_path) == stopped


def test_an_answer_that_does_not_come_in_time_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(exchange, "_PATIENCE_S", 0.01)
    held = exchange.threading.Event()

    assert exchange._within(lambda: held.wait(30)) is None
    held.set()
