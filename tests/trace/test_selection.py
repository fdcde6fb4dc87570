from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest

from dsprof.analysis.rank.profiled_steps import covered_steps
from dsprof.cli.loading import Reading, load_diagnosis
from dsprof.errors import TraceError
from dsprof.trace import chunks
from dsprof.trace.lines import LINES
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Site
from dsprof.trace.selection import OPEN_END, Selection, hosts_in, ranks_in, since_in, steps_in
from dsprof.trace.selection.step_cutting import needed_lines
from tests.factories import kineto
from tests.factories.epochs import Start, write
from tests.factories.month import FastMotion
from tests.factories.trace import MS, group, header, span, step, sync
from tests.factories.trace_files import encode, write_run

STEPS = 400


def write_long(folder: Path, rank: int = 0, steps: int = STEPS) -> Path:
    """A rank of many steps, whose second call site is first met in the middle."""
    lines = [LINES["header"](header(rank, rank + 1)), LINES["group"](group(1))]
    for number in range(steps):
        if number in (0, STEPS // 2):
            lines.append(LINES["site"](Site(1 + (number > 0), "train.py", number)))
        at = 100.0 * number
        lines.append(sync("all_reduce", at, 10, step=number, seq=number, site=1 + (number >= 200)))
        lines.append(LINES["phase"](span("forward", at, at + 50, number), name="forward"))
        lines.append(LINES["step"](step(number, at, at + 90)))
    path = folder / f"trace.rank{rank:05d}.json"
    path.write_bytes(encode(lines))
    return path


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", 1 << 12)


@pytest.mark.usefixtures("small_chunks")
def test_only_the_steps_asked_for_are_read_and_decoded(tmp_path, monkeypatch):
    path = write_long(tmp_path)
    decoded = []
    decode = chunks._decode

    def watched(lines: bytearray):
        decoded.append(len(lines))
        return decode(lines)

    monkeypatch.setattr(chunks, "_decode", watched)
    [trace] = read_run(find_run([tmp_path], Selection(steps=range(300, 320))))
    assert np.unique(trace.collectives.step).tolist() == list(range(300, 320))
    assert [one.step for one in trace.steps] == list(range(300, 320))
    assert {one.step for one in trace.spans} == set(range(300, 320))
    assert sum(decoded) < path.stat().st_size / 4
    assert {site.line for site in trace.sites.values()} == {0, 200}
    assert trace.broken_lines == 0


def test_a_line_made_of_beginnings_of_lines_is_passed_over_at_once():
    """From each beginning the rest of the line was searched: 16 MiB took days."""
    line = bytearray(b" " + b'{"cat":"comm","args":{' * 60_000 + b" ")
    assert needed_lines(line, range(1, 2)) is line


def test_a_step_of_more_digits_than_a_number_has_is_left_to_the_decoder():
    line = bytearray(b' {"cat":"step","args":{"step":' + b"9" * 5000 + b"}}\n ")
    assert needed_lines(line, range(1, 2)) is line


def test_files_of_other_ranks_are_not_opened(tmp_path):
    write_run(tmp_path, 4)
    for rank in (0, 3):
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(b"not a trace")
    run = find_run([tmp_path], Selection(ranks=(range(1, 3),)))
    assert [one.rank for one in run.headers] == [1, 2]
    assert not run.strangers
    assert [trace.rank for trace in read_run(run)] == [1, 2]


def test_epochs_are_counted_alike_whichever_ranks_are_read(tmp_path):
    """The second start has fewer ranks: what rank 3 did next was the third epoch."""
    killed = (None, None)
    write(tmp_path, Start(0, world_size=4), Start(100, ends=killed), Start(200, world_size=4))
    chosen = Selection(ranks=ranks_in("3"))
    last = find_run([tmp_path], chosen)
    assert (last.epoch, len(last.epochs), last.headers[0].run_key) == (3, 3, "run-2")
    assert not last.strangers
    with pytest.raises(TraceError, match="epoch 2 of 3 has no trace of rank 3; name another"):
        find_run([tmp_path], replace(chosen, epoch=2))


def test_a_rank_of_another_run_that_takes_the_place_of_one_is_not_merged(tmp_path):
    write_run(tmp_path, 2)
    run = find_run([tmp_path])
    write_run(tmp_path, 2, run_key="another")
    with pytest.raises(TraceError, match=r"rank00000.json: changed while it was read"):
        list(read_run(run))


def test_hosts_are_chosen_by_name(tmp_path):
    for rank, host in enumerate(("one", "two", "one")):
        lines = [LINES["header"](header(rank, 3, host=host)), LINES["step"](step(0, 0, 9))]
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(encode(lines))
    run = find_run([tmp_path], Selection(hosts=frozenset(["one"])))
    assert [one.rank for one in run.headers] == [0, 2]
    with pytest.raises(TraceError, match=r"^no trace of host One .* \(the hosts are one, two\); "):
        find_run([tmp_path], Selection(hosts=hosts_in("One")))
    with pytest.raises(TraceError, match=r"^no trace of rank 1; host one was found; omit"):
        find_run([tmp_path], Selection(ranks=ranks_in("1"), hosts=hosts_in("one")))


def test_a_rank_without_a_trace_is_answered_with_those_that_have_one(tmp_path):
    write_run(tmp_path, 3)
    with pytest.raises(
        TraceError, match=r"^no trace of rank 7 .* \(there are traces of ranks 0-2\)"
    ):
        find_run([tmp_path], Selection(ranks=ranks_in("7")))


def test_the_report_says_what_is_left_out_and_calls_no_rank_missing(tmp_path):
    write_run(tmp_path, 3)
    chosen = Selection(ranks=ranks_in("0-1"))
    diagnosis = load_diagnosis([tmp_path], reading=Reading(selection=chosen))
    assert any("ranks 0-1" in note for note in diagnosis.quality.notes)
    assert diagnosis.quality.missing_ranks == []
    [quality] = [one for one in diagnosis.findings if one.rule == "data-quality"]
    assert "missing" not in quality.problem + quality.summary + diagnosis.verdict


def test_what_was_selected_and_is_not_there_is_named(tmp_path):
    write_run(tmp_path, 6)
    (tmp_path / "trace.rank00002.json").unlink()
    chosen = Selection(ranks=ranks_in("0-3,99"))
    diagnosis = load_diagnosis([tmp_path], reading=Reading(selection=chosen))
    assert diagnosis.quality.missing_ranks == [2]
    assert any("The run has 6 ranks" in note for note in diagnosis.quality.notes)
    chosen = Selection(hosts=hosts_in("node-a,elsewhere"))
    diagnosis = load_diagnosis([tmp_path], reading=Reading(selection=chosen))
    assert any("on host elsewhere" in note for note in diagnosis.quality.notes)


def test_nothing_selected_is_an_error_that_says_so(tmp_path):
    write_run(tmp_path, 2)
    for chosen in (Selection(ranks=ranks_in("7")), Selection(hosts=frozenset(["elsewhere"]))):
        with pytest.raises(TraceError, match=r"no trace of (rank 7|host elsewhere)"):
            find_run([tmp_path], chosen)


def test_steps_outside_the_run_are_an_error_that_says_which_it_has(tmp_path):
    write_long(tmp_path)
    chosen = Selection(steps=range(999_000, 999_100))
    with pytest.raises(
        TraceError, match=r"999000 to 999099 .*; rank 0 has steps 0 to 399: select some of these$"
    ):
        load_diagnosis([tmp_path], reading=Reading(selection=chosen))


def test_steps_outside_an_epoch_are_an_error_that_names_it(tmp_path):
    write(tmp_path, Start(0, steps=20), Start(20, steps=40))
    chosen = Selection(steps=range(900, 901), epoch=1)
    with pytest.raises(
        TraceError, match=r"; epoch 1 of 2, rank 0 has steps 0 to 19: select some of these$"
    ):
        load_diagnosis([tmp_path], reading=Reading(selection=chosen))


def test_a_device_is_reported_in_the_steps_that_were_selected(tmp_path):
    """The kernel of the first step runs into the second: only its end is of that."""
    events = [kineto.kernel(kineto.GEMM, 20, 90), *kineto.steps(4, 60, 20)]
    kineto.write(tmp_path / "rank0.json", events, 0, world_size=1)
    whole = load_diagnosis([tmp_path])
    part = load_diagnosis([tmp_path], reading=Reading(selection=Selection(steps=range(1, 3))))
    [device], [all_of_it] = part.devices, whole.devices
    assert all_of_it.kernels == 9
    assert device.kernels == 5
    assert device.span_ns == 180 * MS
    assert device.compute_ns == 120 * MS
    assert device.operations == {"allreduce": 2}
    rows = {row.step: row for row in whole.steps.rows}
    assert [row.compute_ns for row in part.steps.rows] == [rows[n].compute_ns for n in (1, 2)]


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_profile_beside_a_trace_is_cut_to_the_steps_that_were_selected(tmp_path, is_tied):
    started_ns = int(kineto.START_US) * 1000 if is_tied else 1
    write_run(tmp_path, 1, started_epoch_ns=started_ns)
    kineto.write(tmp_path / "profile.json", kineto.steps(4, 60, 20), 0, world_size=1)
    [trace] = read_run(find_run([tmp_path], Selection(steps=range(1, 3))))
    if not is_tied:
        assert trace.activity is None
        return
    assert trace.activity is not None
    assert trace.activity.start_ns.min() == trace.steps[0].start_ns
    assert trace.activity.end_ns.max() <= trace.steps[-1].end_ns
    assert covered_steps(trace) == {1, 2}


def test_the_step_in_which_a_run_ended_is_reported(tmp_path):
    path = write_long(tmp_path)
    lines = path.read_bytes().removesuffix(b"\n]\n")
    path.write_bytes(lines[: lines.rindex(b'{"cat":"step"')])
    chosen = Selection(steps=range(STEPS - 1, STEPS))
    assert load_diagnosis([tmp_path], reading=Reading(selection=chosen)).run.steps == 0


def test_a_run_without_steps_is_reported_whichever_are_selected(tmp_path):
    write_long(tmp_path, steps=0)
    chosen = Selection(steps=range(5, 10))
    diagnosis = load_diagnosis([tmp_path], reading=Reading(selection=chosen))
    assert diagnosis.verdict.endswith("No optimizer step was recorded in steps 5 to 9.")


def test_what_follows_the_last_step_is_not_taken_for_a_run_without_steps(tmp_path):
    [path] = write_run(tmp_path, 1)
    closing = encode([sync("barrier", 450, 5, step=4)]).removesuffix(b"\n]\n").removeprefix(b"[")
    trailer = path.read_bytes().rindex(b"\n{")
    path.write_bytes(path.read_bytes()[:trailer] + closing + b"," + path.read_bytes()[trailer:])
    diagnosis = load_diagnosis([tmp_path], reading=Reading(selection=Selection(steps=range(4, 9))))
    assert diagnosis.verdict.startswith("No optimizer step was recorded in steps 4 to 8. Select")


@pytest.mark.parametrize(
    ("chosen", "selected"),
    [
        (Selection(), "2 of 2 ranks, complete"),
        (Selection(steps=range(1, 3)), "2 of 2 ranks, selected: steps 1 to 2"),
        (Selection(steps=range(1, 2)), "2 of 2 ranks, selected: step 1"),
        (
            Selection(hosts=hosts_in("node-a"), ranks=ranks_in("1")),
            "1 of 2 ranks, selected: rank 1, host node-a",
        ),
    ],
)
def test_a_part_is_not_called_complete(tmp_path, chosen, selected):
    write_run(tmp_path, 2)
    diagnosis = load_diagnosis([tmp_path], reading=Reading(selection=chosen))
    assert diagnosis.run.selection == str(chosen)
    assert diagnosis.quality.line.split(";")[0] == selected


def test_a_step_whose_details_were_left_out_is_an_error_that_says_so(tmp_path):
    one = FastMotion(tmp_path, 1 << 18, world_size=1)
    with one.running():
        one.train(2000)
    [trace] = read_run(find_run([tmp_path]))
    detailed = [one.step for one in trace.steps]
    left_out = min({*range(detailed[0], 2000)} - {*detailed})
    after = min(step for step in detailed if step > left_out)
    nearest = rf"and details of some \(nearest: {left_out - 1} and {after}\): select some of these$"
    chosen = Selection(steps=range(left_out, left_out + 1))
    with pytest.raises(TraceError, match=rf"has steps 0 to 1999, {nearest}"):
        load_diagnosis([tmp_path], reading=Reading(selection=chosen))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-2-3"])
def test_ranks_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="0-63"):
        ranks_in(text)


def test_hosts_without_a_name_are_refused():
    with pytest.raises(ValueError, match="node1,node2"):
        hosts_in(",")


@pytest.mark.parametrize("text", ["", "5:5", "7:3", ":", "1:2:3"])
def test_steps_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="1000:1200"):
        steps_in(text)


def test_a_single_number_of_a_step_is_shown_as_a_range():
    with pytest.raises(ValueError, match=r"write 5:6 for step 5$"):
        steps_in("5")


def since(folder: Path, text: str) -> range | None:
    return find_run([folder], Selection(since=since_in(text))).selection.steps


def test_a_time_before_the_end_chooses_the_steps_that_ended_since(tmp_path):
    write_long(tmp_path)  # a step each 100 ms
    assert since(tmp_path, "1s") == range(STEPS - 10, OPEN_END)
    assert since(tmp_path, "3d") == range(OPEN_END)


def test_a_time_of_the_clock_chooses_the_steps_that_ended_since(tmp_path):
    started = datetime(2026, 11, 24, 10, tzinfo=timezone.utc)
    started_ns = int(started.timestamp()) * 1_000_000_000
    lines = [LINES["header"](header(0, 1, started_epoch_ns=started_ns))]
    lines += [LINES["step"](step(number, 1e3 * number, 1e3 * (number + 1))) for number in range(9)]
    (tmp_path / "trace.rank00000.json").write_bytes(encode(lines))
    assert since(tmp_path, "2026-11-24T10:00:05Z") == range(5, OPEN_END)
    assert since(tmp_path, "2026-11-24T12:00:05+02:00") == range(5, OPEN_END)
    with pytest.raises(TraceError, match=r"no step ended since 2026-11-24T10:01Z; omit --since"):
        since(tmp_path, "2026-11-24T10:01Z")


@pytest.mark.parametrize("killed_steps", [0, 40])
def test_the_end_is_that_of_the_rank_that_came_furthest(tmp_path, killed_steps):
    os.utime(write_long(tmp_path, steps=killed_steps), (0, 0))
    write_long(tmp_path, rank=1)
    assert since(tmp_path, "1s") == range(STEPS - 10, OPEN_END)


def test_steps_since_a_time_are_named_in_the_report(tmp_path):
    write_long(tmp_path)
    chosen = Selection(since=since_in("1s"))
    diagnosis = load_diagnosis([tmp_path], reading=Reading(selection=chosen))
    assert any("steps from 390" in note for note in diagnosis.quality.notes)


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2w", "yesterday", "99999-01-01"])
def test_times_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="2h"):
        since_in(text)
