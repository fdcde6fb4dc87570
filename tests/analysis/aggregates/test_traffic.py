from __future__ import annotations

from dsprof.analysis.aggregates.traffic import Traffic, Use, Volume
from tests.factories.trace import (
    MS,
    captured,
    engine,
    group,
    rank_trace,
    span,
    step,
    summary,
    sync,
    zero_rank,
)

MIB = 1 << 20


def traffic(*traces) -> Traffic:
    return summary(*traces)[Traffic]


def plain(*comm, micro_steps=1):
    return rank_trace(steps=[step(0, 0, 100, micro_steps)], comm=comm)


def test_gradients_are_what_flushes_sent():
    def norm(number, start):
        return [sync("all_reduce", start, 1, nbytes=64 * MIB, phase="backward", step=number)]

    uses = traffic(zero_rank(0, extra=norm), zero_rank(1, extra=norm)).uses
    assert uses[Use("gradients", "all_reduce", 2)] == Volume(8, 8 * MIB, 40 * MS)
    assert uses[Use("other", "all_reduce", 2)].nbytes == 8 * 64 * MIB


def test_parameters_are_what_fetches_sent():
    found = traffic(plain(sync("all_gather", 0, 1, step=0, fetch=4)))
    assert list(found.of("parameters")) == [Use("parameters", "all_gather", 2)]


def test_without_flushes_reductions_outside_forward_and_step_are_gradients():
    found = traffic(
        plain(
            sync("all_reduce", 0, 1, step=0, phase="backward"),
            sync("reduce_scatter_tensor", 2, 1, step=0, phase=""),
            sync("all_reduce", 4, 1, step=0, phase="step"),
            sync("all_reduce", 6, 1, step=0, phase="backward", nbytes=4),
            sync("all_gather", 8, 1, step=0, phase="backward"),
        )
    )
    assert {use.family: volume.calls for use, volume in found.of("gradients").items()} == {
        "all_reduce": 1,
        "reduce_scatter": 1,
    }


def test_an_optimizer_without_an_engine_may_reduce_gradients_in_its_step():
    trace = plain(
        sync("reduce_scatter_tensor", 0, 1, step=0, phase="step"),
        sync("all_reduce", 2, 1, step=0, phase="step", nbytes=4),
        sync("all_gather", 4, 1, step=0, phase="step"),
    )
    found = traffic(trace)
    assert [use.family for use in found.of("gradients")] == ["reduce_scatter"]
    assert found.reducing_micro_steps == 1
    trace.engines = {0: engine(1)}
    assert not traffic(trace).of("gradients")


def test_groups_that_reduce_in_forward_too_are_tensor_parallel():
    found = traffic(
        plain(
            sync("all_reduce", 0, 1, step=0, phase="forward"),
            sync("all_reduce", 2, 1, step=0, phase="backward"),
        )
    )
    assert not found.of("gradients")


def test_a_plain_loop_has_forward_before_its_first_backward():
    """Group 2 is tensor parallel; group 1 averages gradients, and parameters before forward."""
    comm = [
        sync("all_reduce", 2, 1, step=0, nbytes=MIB),
        sync("all_reduce", 10, 1, step=0, group=2, nbytes=2 * MIB),
        sync("all_reduce", 30, 1, step=0, group=2, nbytes=2 * MIB, phase="backward"),
        sync("all_reduce", 60, 1, step=0, nbytes=4 * MIB),
    ]
    trace = rank_trace(
        steps=[step(0, 0, 100)],
        comm=comm,
        groups={1: group(2), 2: group(2, id=2, key="tp")},
        spans=[span("backward", 20, 50, 0), span("step", 80, 90, 0)],
    )
    (found,) = traffic(trace).of("gradients").values()
    assert (found.calls, found.nbytes) == (1, 4 * MIB)


def test_micro_steps_that_reduced_are_counted():
    found = traffic(zero_rank(accumulation=3))
    assert (found.rank_steps, found.micro_steps, found.reducing_micro_steps) == (4, 12, 12)


def test_operations_that_never_reached_the_wire_are_left_out():
    assert not traffic(plain(sync("all_reduce", 0, 1, step=0, on_wire=False))).uses


def test_counters_are_left_out_beside_steps_in_detail():
    found = traffic(captured(window=range(4, 7), steps=10, accumulation=2))
    assert (found.rank_steps, found.micro_steps, found.reducing_micro_steps) == (3, 6, 6)
    assert set(found.uses) == {Use("gradients", "all_reduce", 2)}


def test_what_counters_were_for_is_not_known():
    found = traffic(captured(window=range(0), steps=6))
    assert found.uses == {Use("not known", "all_reduce", 2): Volume(4, 4 * MIB, 80 * MS)}
