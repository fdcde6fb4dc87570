"""Traces of real jobs, against figures that an independent script computed for each of them.

Microseconds of the whole trace: time in communication kernels, in other kernels, exposed
communication, idle, and the span from the first kernel or copy to the last.
"""

from __future__ import annotations

from functools import cache

import pytest

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.run.lateness import lateness
from dsprof.analysis.summarise import summarise
from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import duration, percent
from dsprof.trace.run import find_run
from tests.shared_data import traces

FIGURES = {
    "hta_mi250_minitoy": {0: (0, 110.9, 0, 8762.8, 8911.9)},
    "hta_nccl_data": {0: (46876.5, 115655.8, 39559.5, 503050.9, 660551.0)},
    "hta_ns_resolution": {0: (0, 468173.2, 0, 7566.8, 480029.2)},
    "hta_sampled_2of128": {
        0: (396199.0, 210320.0, 336983.0, 675191.0, 1222847.0),
        1: (379053.0, 271973.0, 303523.0, 651136.0, 1231186.0),
    },
    "hta_trace_diff_control": {3: (163535.0, 281336.0, 87921.0, 76007.0, 464594.0)},
    "param_linear_kineto": {0: (0, 369343.0, 0, 637587.0, 1008570.0)},
    "torchrec_resnet18": {
        0: (7734.0, 684.0, 7734.0, 120472.0, 128959.0),
        1: (172.0, 698.0, 172.0, 128291.0, 129231.0),
    },
    "torchrec_sst_long_a2a_optimizer": {
        0: (3073067.0, 118965.0, 3036374.0, 139527.0, 3294949.0),
        1: (3073095.0, 122076.0, 3033490.0, 139273.0, 3294927.0),
        2: (36693.0, 122190.0, 31718.0, 3128349.0, 3282373.0),
        3: (3071948.0, 122074.0, 3032381.0, 140257.0, 3294799.0),
    },
    "torchrec_sst_long_a2a_optimizer_3": {
        0: (261518.0, 375340.0, 135201.0, 232365.0, 743208.0),
        1: (250308.0, 378090.0, 129953.0, 230584.0, 739262.0),
        2: (108377.0, 354720.0, 84364.0, 275006.0, 714594.0),
        3: (251919.0, 377417.0, 132716.0, 232759.0, 743188.0),
    },
    "torchrec_sst_long_a2a_optimizer_5_qcomm": {
        0: (242156.0, 439075.0, 86928.0, 197326.0, 723427.0),
        1: (242472.0, 440822.0, 85482.0, 197258.0, 723659.0),
        2: (119621.0, 423272.0, 23270.0, 257554.0, 704604.0),
        3: (248431.0, 442027.0, 86670.0, 194087.0, 723051.0),
    },
    "tracelens_mi300_resnet_act_checkpoint": {0: (71516.5, 25739.4, 55625.2, 2565.6, 86567.7)},
}


@cache
def judged(name: str) -> Diagnosis:
    return diagnose(find_run([traces(name)]))


def rule(diagnosis: Diagnosis, name: str) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.rule == name)


def claims(diagnosis: Diagnosis) -> set[str]:
    told = {Status.FAIL, Status.INFO}
    return {finding.rule for finding in diagnosis.findings if finding.status in told}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_independent_script(name: str) -> None:
    found = summarise(find_run([traces(name)]), [Device])[Device].ranks
    assert found.keys() == FIGURES[name].keys()
    for rank, (comm, compute, exposed, idle, span) in FIGURES[name].items():
        one = found[rank]
        # In these sets no communication is beyond NCCL and RCCL: both ways of counting agree.
        assert one.communication_ns == one.usual_ns == pytest.approx(comm * 1000, rel=1e-3)
        assert one.exposed_ns == one.usual_exposed_ns == pytest.approx(exposed * 1000, rel=1e-3)
        assert one.compute_ns == pytest.approx(compute * 1000, rel=1e-3)
        assert one.idle_ns == pytest.approx(idle * 1000, rel=1e-3)
        assert one.span_ns == pytest.approx(span * 1000, rel=1e-3)
        parts = one.compute_ns + one.exposed_ns + one.copies_ns + one.idle_ns
        assert parts == one.span_ns
        assert (one.beyond, one.unrecognised) == ((), ())
        if comm:
            assert one.overlap == pytest.approx(1 - exposed / comm, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "late"),
    [
        ("torchrec_resnet18", 1),
        ("torchrec_sst_long_a2a_optimizer", 2),
        ("torchrec_sst_long_a2a_optimizer_3", 2),
        ("torchrec_sst_long_a2a_optimizer_5_qcomm", 2),
    ],
)
def test_the_late_rank_is_named(name: str, late: int) -> None:
    diagnosis = judged(name)
    finding = rule(diagnosis, "late-rank")
    assert (finding.status, finding.ranks) == (Status.FAIL, (late,))
    remarks = [f for f in diagnosis.findings if f.status is Status.INFO]
    assert not any(late in remark.ranks for remark in remarks)  # told once
    # Windows that open at different times are no mismatch of collectives.
    assert not any("mismatch" in f.summary.lower() for f in diagnosis.findings)


def test_waiting_for_a_late_rank_leads_the_verdict() -> None:
    diagnosis = judged("torchrec_sst_long_a2a_optimizer")
    assert diagnosis.verdict.startswith("Rank 2 delays the others by 1.01 s per step")


@pytest.mark.parametrize("name", ["torchrec_resnet18", "hta_nccl_data"])
def test_one_rank_of_several_leads_with_its_own_finding(name: str) -> None:
    first = sorted(traces(name).iterdir())[0]
    diagnosis = diagnose(find_run([first]))
    missing = rule(diagnosis, "data-quality")
    assert (missing.status, missing.severity) == (Status.INFO, Severity.NONE)
    assert diagnosis.verdict.startswith("The device is idle")


@pytest.mark.parametrize("name", ["torchrec_resnet18", "hta_nccl_data"])
def test_an_idle_device_comes_before_communication(name: str) -> None:
    diagnosis = judged(name)
    failed = [f.rule for f in diagnosis.findings if f.status is Status.FAIL]
    assert next(one for one in failed if one != "data-quality") == "device-idle"
    assert "communication-bound-step" not in claims(diagnosis)


def test_a_verdict_about_the_device_and_the_steps_are_of_one_window() -> None:
    """A third of the whole record is idle, for the warm-up allocates; a twentieth of the steps."""
    diagnosis = judged("torchrec_sst_long_a2a_optimizer_3")
    idle = rule(diagnosis, "device-idle")
    total = diagnosis.steps.total
    assert idle.status is Status.PASS
    assert f"idle {percent(total.idle_ns / total.total_ns)} of the measured steps" in idle.summary


def test_a_sample_of_few_ranks_supports_no_claim() -> None:
    diagnosis = judged("hta_sampled_2of128")
    assert claims(diagnosis) == {"data-quality"}
    assert rule(diagnosis, "late-rank").status is Status.UNKNOWN
    assert "Events are missing" in " ".join(f.summary for f in diagnosis.findings)
    assert len(diagnosis.quality.missing_ranks) == 126
    assert diagnosis.steps.total.exposed_comm_ns is None
    (kind,) = {(row.op, row.group) for row in diagnosis.communication}
    assert kind[0] == "send_recv"


@pytest.mark.parametrize(
    "name", ["hta_mi250_minitoy", "hta_ns_resolution", "param_linear_kineto", "hta_cpu_only"]
)
def test_controls_without_communication_on_a_device_bring_no_finding_about_it(name: str) -> None:
    diagnosis = judged(name)
    about = {"low-comm-overlap", "communication-bound-step", "late-rank", "small-collectives"}
    assert not claims(diagnosis) & about


def test_a_trace_without_a_device() -> None:
    diagnosis = judged("hta_cpu_only")
    assert diagnosis.devices == []
    assert (diagnosis.run.ranks, diagnosis.run.world_size) == ([34], 300)
    assert {row.op for row in diagnosis.communication} == {"all_reduce"}


def test_one_rank_of_several_names_no_late_rank() -> None:
    diagnosis = judged("hta_trace_diff_control")
    assert diagnosis.devices[0].operations == {"send_recv": 42, "all_reduce": 18}
    assert rule(diagnosis, "late-rank").status is Status.UNKNOWN
    assert not any(f.ranks == (3,) for f in diagnosis.findings)


def test_the_profilers_names_of_collectives() -> None:
    assert judged("hta_nccl_data").devices[0].operations == {"allreduce": 15, "broadcast": 6}
    generic = judged("tracelens_mi300_resnet_act_checkpoint")
    assert generic.devices[0].operations == {"broadcast": 6, "allreduce": 6, "not named": 5}
    assert rule(generic, "communication-bound-step").status is Status.FAIL
    assert 1e9 < max(row.busbw or 0 for row in generic.communication) < 4e9


def test_most_of_quantised_communication_is_hidden() -> None:
    diagnosis = judged("torchrec_sst_long_a2a_optimizer_5_qcomm")
    shares = {row.rank: row.overlap for row in diagnosis.devices}
    assert shares == pytest.approx({0: 0.641, 1: 0.6475, 2: 0.8055, 3: 0.6511}, abs=1e-3)
    assert rule(diagnosis, "low-comm-overlap").status is Status.PASS


@pytest.mark.parametrize(
    ("name", "last", "of", "waited_ms"),
    [
        # 7.16 ms: the independent script's sum over collectives of what rank 1 came later.
        ("torchrec_resnet18", 1, 12, 7.16),
        # Rank 2's window opens a collective later; the others sit a second a step in one of them.
        ("torchrec_sst_long_a2a_optimizer", 2, 12, 3035),
    ],
)
def test_the_late_rank_comes_last_to_every_collective(
    name: str, last: int, of: int, waited_ms: float
) -> None:
    arrivals = summarise(find_run([traces(name)]), [Arrivals])[Arrivals]
    (one,) = arrivals.matched
    late = lateness([one])
    place = one.ranks.index(last)
    assert (one.unplaced, int(late.lasts[place]), int(late.met[place])) == ((), of, of)
    assert late.lasts.sum() == of
    assert late.caused_ns[place] / 1e6 == pytest.approx(waited_ms, rel=0.005)


@pytest.mark.parametrize("run", ["", "_3", "_5_qcomm"])
def test_a_wait_has_one_figure(run: str) -> None:
    diagnosis = judged(f"torchrec_sst_long_a2a_optimizer{run}")
    caused_ns = diagnosis.arrivals.rows[0].caused_ns
    assert rule(diagnosis, "late-rank").evidence[0].rows[0][:2] == (2, caused_ns)
    assert f"others by {duration(caused_ns)} per step" in diagnosis.verdict


@pytest.mark.parametrize("run", ["_3", "_5_qcomm"])
def test_the_milder_late_rank_costs_most_of_all(run: str) -> None:
    diagnosis = judged(f"torchrec_sst_long_a2a_optimizer{run}")
    assert diagnosis.arrivals.rows[0].rank == 2
    assert diagnosis.arrivals.rows[0].caused_ns > 2 * diagnosis.arrivals.rows[1].caused_ns


@pytest.mark.parametrize("name", ["hta_sampled_2of128", "hta_trace_diff_control", "hta_cpu_only"])
def test_samples_and_single_ranks_have_no_arrivals_to_compare(name: str) -> None:
    assert judged(name).arrivals.rows == []
