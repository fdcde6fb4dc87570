"""Which steps count, and which rows of a trace belong to them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.profiled_steps import covered_steps
from dsprof.analysis.rank.record_columns import span_columns, step_columns
from dsprof.analysis.rank.remembered import remembered
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.device_activity import DeviceActivity
from dsprof.trace.rank_trace import Collectives, RankTrace
from dsprof.trace.schema import Header, Step
from dsprof.trace.window import Window

HOST = "cpu"
"""The `device` of a header whose collectives ran on the host's clock."""


def warmup_steps(recorded: int) -> int:
    """Return how many of the first steps are left out of totals and rules.

    The first steps allocate buffers, compile kernels and import modules. Two are left out where at
    least four were recorded, else one, but never the only one.
    """
    return 2 if recorded >= 4 else min(1, max(recorded - 1, 0))


def evenly_spaced(numbers: Array) -> Array:
    """Return the multiples of the least power of two of which none is missing (ascending).

    A rolling recording keeps steps by their number, ever more seldom, and slow ones beside: of the
    result none was chosen for its length.
    """
    stride = 1
    while True:
        found: Array = numbers[numbers % stride == 0]
        first = -(-int(numbers[0]) // stride) * stride
        if len(found) == len(range(first, int(numbers[-1]) + 1, stride)):
            return found
        stride *= 2


def choose_measured(numbers: Array, counted: Array, newest_from: int) -> Array:
    """Choose the steps that totals and rules take, of those recorded (both ascending).

    Steps in full detail and steps that were only counted are never mixed: the counted ones are
    taken where there are no others. A recorded window that ends within the warm-up has a warm-up of
    its own, so that something of it is left. Of a rolling recording those since `newest_from` are
    taken, or of earlier ones, which are kept for being slow, too, those at one distance.
    """
    detailed = _without(numbers, counted)
    newest = detailed[detailed >= newest_from]
    fair = newest if len(newest) or not len(detailed) else evenly_spaced(detailed)
    detailed = fair if len(fair) else detailed
    pool = detailed if len(detailed) else numbers
    warmup = warmup_steps(len(numbers))
    late = pool[pool >= numbers[warmup]] if warmup < len(numbers) else pool[:0]
    return late if len(late) else pool[warmup_steps(len(pool)) :]


@remembered
def measured_steps(trace: RankTrace) -> Array:
    """Return the numbers of the steps of this rank that totals and rules take, ascending."""
    return choose_measured(recorded_steps(trace), counted_steps(trace), trace.newest_from)


@remembered
def detailed_steps(trace: RankTrace) -> Array:
    """Return the measured steps of which the trace holds everything: all of them, or none."""
    return _without(measured_steps(trace), counted_steps(trace))


@remembered
def counted_steps(trace: RankTrace) -> Array:
    """Return the numbers of the steps that are not in full detail, ascending.

    These are outside the recorded window, or came when the budget was spent. Where only a profiler
    timed the device, those that it did not see are among them.
    """
    numbers = recorded_steps(trace)

    window = _window(trace.header)
    outside = [] if window == Window() else [n for n in numbers.tolist() if not window.holds(n)]
    inside = [counters.step for counters in trace.counters]
    profiled = profiled_steps(trace)
    if not (outside or inside or profiled):
        return numbers[:0]
    counted = _ascending(np.array(outside + inside, np.int64))
    seen = np.array(sorted(profiled), np.int64)
    if len(_without(seen, counted)):
        counted = np.union1d(counted, _without(numbers, seen))
    return counted


@remembered
def recorded_steps(trace: RankTrace) -> Array:
    """Return the numbers of the steps of this rank, ascending."""
    return _ascending(step_columns(trace).number)


def _ascending(numbers: Array) -> Array:
    """Return each number once, in order: most are."""
    return numbers if (np.diff(numbers) > 0).all() else np.unique(numbers)


def _without(numbers: Array, others: Array) -> Array:
    """Return the numbers (ascending) that are not among `others`."""
    return numbers[~np.isin(numbers, others)] if len(others) else numbers


def kernels(trace: RankTrace) -> DeviceActivity | None:
    """Return the kernels that say what the time of steps went into; None where dsprof says it."""
    if trace.device is not None:
        return None if trace.is_sampled else trace.device
    return trace.activity if profiled_steps(trace) else None


def profiled_steps(trace: RankTrace) -> set[int]:
    """Return the steps that only the profiler beside the trace timed; none after warm-up: none."""
    if is_timed(trace):
        return set()
    seen = covered_steps(trace)
    numbers = recorded_steps(trace)
    return seen if seen & set(numbers[warmup_steps(len(numbers)) :].tolist()) else set()


def device_steps(trace: RankTrace) -> list[Step]:
    """Return the measured steps of which a profiler saw the device, in order."""
    wanted = set(detailed_steps(trace).tolist())
    if trace.device is None:
        wanted &= covered_steps(trace)
    return sorted((s for s in trace.steps if s.step in wanted), key=lambda step: step.start_ns)


def device_windows(trace: RankTrace, device: DeviceActivity) -> tuple[Array, Array]:
    """Return starts and ends of what verdicts about a device are about.

    These are the measured steps that a profiler saw; the whole record where there are none.
    """
    steps = device_steps(trace)
    if not steps:
        return device.start_ns.min(keepdims=True), device.end_ns.max(keepdims=True)
    starts, ends = ([getattr(s, name) for s in steps] for name in ("start_ns", "end_ns"))
    return np.array(starts, np.int64), np.array(ends, np.int64)


def in_steps(step: IntArray, numbers: Array) -> BoolArray:
    """Say which rows have a step among `numbers` (ascending)."""
    return places(step, numbers)[1]


def taken_micro_steps(trace: RankTrace, numbers: Array) -> int:
    """Return how many micro-steps these steps (ascending) have, at least one each."""
    steps = step_columns(trace)
    return int(np.maximum(steps.micro_steps[in_steps(steps.number, numbers)], 1).sum())


def micro_steps_of(rows: Collectives, chosen: Array) -> int:
    """Return in how many micro-steps the chosen collectives were issued."""
    return len(group_rows([rows.step[chosen], rows.micro_step[chosen]]))


def backwards_again(trace: RankTrace, numbers: Array) -> int:
    """Return how many backwards of these steps (ascending) followed another one in a closure.

    An optimizer such as L-BFGS calls its closure several times per step, with other parameters
    each time. All that one `optimizer.step()` contains counts as of one closure.
    """
    spans = span_columns(trace)
    mine = in_steps(spans.step, numbers) & ~spans.is_annotation
    backward, step = mine & spans.named("backward"), mine & spans.named("step")
    order = np.argsort(spans.start_ns[step], kind="stable")
    begin, end = spans.start_ns[step][order], spans.end_ns[step][order]
    around = np.searchsorted(begin, spans.start_ns[backward], side="right") - 1
    inside = around[(around >= 0) & (spans.end_ns[backward] <= np.append(end, 0)[around])]
    return len(inside) - len(np.unique(inside))


def places(step: IntArray, numbers: Array) -> tuple[npt.NDArray[np.intp], BoolArray]:
    """Return where in `numbers` (ascending, each once) the step of each row is, and if it is."""
    if not len(numbers):
        return np.zeros(len(step), np.intp), np.zeros(len(step), np.bool_)
    first, last = numbers[0], numbers[-1]
    if int(last) - int(first) == len(numbers) - 1:  # without a gap, as nearly always
        index = np.clip(step, first, last).astype(np.intp) - first
    else:
        index = np.minimum(np.searchsorted(numbers, step), len(numbers) - 1)
    return index, np.asarray(numbers[index] == step, np.bool_)


def measured_rows(trace: RankTrace) -> Array:
    """Return the indices of the collectives that belong to measured steps."""
    return np.flatnonzero(in_steps(trace.collectives.step, measured_steps(trace)))


def _window(header: Header) -> Window:
    """Return the recorded window; a step without collectives has no counters that would tell."""
    get = header.config.get
    start, steps, every = get("start_step", 0), get("steps"), get("every", 1)
    whole = isinstance(start, int) and isinstance(every, int) and every > 0
    if whole and (steps is None or isinstance(steps, int)):
        return Window(start, steps, every)
    return Window()


def is_timed(trace: RankTrace) -> bool:
    """Say whether the trace shows the time lost to communication."""
    return trace.is_device_timed or on_host_clock(trace)


def on_host_clock(trace: RankTrace) -> bool:
    """Say whether waits on the host clock show the time lost to communication.

    On a CPU they do. On an accelerator collectives run on streams: the call returns before the
    work is done, and the stall falls where nothing is written yet.
    """
    return trace.header.device == HOST
