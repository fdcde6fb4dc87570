"""Why what was sent is not what was asked for: each difference with its cause, if one is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import add
from typing import Literal

from dsprof.analysis.aggregates.intent import Account, Amount, Sent
from dsprof.analysis.rank.intent import Expected, Kind, Terms, terms_of
from dsprof.findings.wording import count, percent, plural
from dsprof.trace.dtypes import item_bytes
from dsprof.trace.schema import ROLES, EngineConfig

Verdict = Literal["as asked", "explained", "unexplained"]

_TITLES: dict[Kind, str] = {
    "gradients": "gradients",
    "parameters": "parameters for use",
    "update": "parameters after the step",
}
NO_GRADIENT = "of the parameters had no gradient"
_FIRST_USE = "nothing of the kind is asked for in each step: parameters at their first use"
_SPARSE = "those of embeddings with sparse=True are all-gathered"
_OWN = "small messages of the program"
_MAKES = {
    "all_to_all": "expert or sequence parallelism",
    "send": "a pipeline",
    "recv": "a pipeline",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of traffic; numbers are of one rank and step, None where nothing was modelled."""

    what: str
    why: str  # what the configuration asks for, in words
    families: tuple[str, ...]
    expected_calls: tuple[float, float] | None
    expected_bytes: tuple[float, float] | None
    calls: float
    nbytes: float
    verdict: Verdict = "as asked"
    cause: str = ""


def compare(
    account: Account, engine: EngineConfig | None, tolerance: float, minor_share: float
) -> Iterator[Line]:
    """Yield a line for each kind of traffic, first what the configuration asks for.

    Bytes count as equal within `tolerance`; traffic that nothing asks for is judged from
    `minor_share` of all bytes on.
    """
    terms = terms_of(engine)
    if not account.trains:
        terms = terms._replace(micro_steps=0)
    asking = _Asking(account, terms, tolerance)
    for kind in _TITLES:
        yield from asking.line(kind)
    total = sum(amount.nbytes for amount in account.sent.values())
    for sent, amount in sorted(account.sent.items(), key=lambda item: -item[1].nbytes):
        if sent.kind == "other":
            yield asking.unexpected(sent, amount, is_minor=amount.nbytes < minor_share * total)
    yield from asking.small()


class _Asking:
    """One comparison."""

    def __init__(self, account: Account, terms: Terms, tolerance: float) -> None:
        self._account, self._terms, self._tolerance = account, terms, tolerance
        self._steps = max(account.progress.steps, 1)
        # Without ZeRO DeepSpeed all-gathers nothing else in backward.
        self._is_sparse = terms.stage == 0 and any(map(_is_gathered_in_backward, account.sent))

    def line(self, kind: Kind) -> Iterator[Line]:
        """Compare the modelled traffic of one purpose with what was sent."""
        demands = [
            (demand, e) for demand, e in self._account.demands.items() if demand.kind == kind
        ]
        sent = {s: amount for s, amount in self._account.sent.items() if s.kind == kind}
        if not demands:
            if sent:
                yield self._line(_TITLES[kind], sent, None, "", "explained", _FIRST_USE)
            return
        expected = reduce(add, (e for _, e in demands))
        families = {name for demand, _ in demands for name in demand.families}
        why = "; ".join(dict.fromkeys(demand.why for demand, _ in demands))
        verdict, cause = self._judge(kind, expected, sent, families)
        yield self._line(_TITLES[kind], sent, expected, why, verdict, cause)

    def _judge(
        self, kind: Kind, expected: Expected, sent: dict[Sent, Amount], families: set[str]
    ) -> tuple[Verdict, str]:
        strange = {one.family for one in sent} - families
        if strange:
            return "unexplained", f"{', '.join(sorted(strange))}: {_TITLES[kind]} need none"
        total = sum(sent.values(), Amount(0, 0, 0))
        if not total.calls and expected.nbytes.low:
            return "explained", "none was seen"
        if self._within(total.nbytes, expected):
            span = expected.calls
            if span is None or span.low <= total.calls <= span.high:
                return "as asked", ""
            return "explained", "as many bytes in other calls: several groups, dtypes or parts"
        causes = {"gradients": self._gradients, "parameters": self._fetches}
        cause = causes.get(kind, self._updates)(expected, total)
        return ("explained", cause) if cause else ("unexplained", "")

    def _within(self, nbytes: float, expected: Expected, factor: float = 1.0) -> bool:
        low, high = expected.nbytes.low * factor, expected.nbytes.high * factor
        return low * (1 - self._tolerance) <= nbytes <= high * (1 + self._tolerance)

    def _gradients(self, expected: Expected, total: Amount) -> str:
        """Try other dtypes, other micro-steps, and parameters without a gradient."""
        terms, done = self._terms, self._account.progress
        if terms.stage < 0:
            return self._of_torch(expected, total)
        size = item_bytes(terms.gradient_dtype)
        passes = done.reducing_micro_steps / self._steps
        changes = [
            (_share(total.nbytes, total.elements * size), f"not sent as {terms.gradient_dtype}"),
            (passes / terms.reductions, self._passes(passes)),
        ]
        whole = expected.nbytes.low / size * changes[1][0]
        filled = _share(done.flushed_elements, whole)
        if filled < 1:
            lacking = _SPARSE if self._is_sparse else f"{percent(1 - filled)} {NO_GRADIENT}"
            changes.append((filled, lacking))
        changes = [change for change in changes if abs(change[0] - 1) > self._tolerance]
        explained = self._within(total.nbytes, expected, prod(factor for factor, _ in changes))
        return "; ".join(words for _, words in changes) if explained else ""

    def _of_torch(self, expected: Expected, total: Amount) -> str:
        is_narrow = total.nbytes < 3 * total.elements
        if is_narrow and self._within(total.nbytes, expected, 0.5):
            return "sent in half the bytes, by a communication hook or mixed precision"
        share = _share(total.nbytes, expected.nbytes.low)
        unused = f"{percent(1 - share)} of the gradients were not reduced: unused parameters"
        return unused if share < 1 else ""

    def _passes(self, passes: float) -> str:
        done, configured = self._account.progress.micro_steps / self._steps, self._terms.micro_steps
        if self._terms.stage >= 2 and abs(done - configured) > self._tolerance * configured:
            return f"{count(done)} micro-steps per step, where {configured} are configured"
        return f"reduced in {count(passes)} of {count(done)} micro-steps"

    def _updates(self, expected: Expected, total: Amount) -> str:
        share = _share(total.nbytes, expected.nbytes.low)
        if self._terms.parameter_dtype == "float16" and share < 1:
            return f"{percent(1 - share)} of the steps were skipped: overflow of float16"
        size = item_bytes(self._terms.parameter_dtype)
        wider = _share(total.nbytes, total.elements * size)
        is_wider = abs(wider - 1) > self._tolerance
        fits = self._within(total.nbytes, expected, wider)
        return f"not sent as {self._terms.parameter_dtype}" if is_wider and fits else ""

    def _fetches(self, expected: Expected, total: Amount) -> str:
        """Say how often parameters were gathered, in words of why that may be."""
        done = self._account.progress
        configured = self._terms.micro_steps
        ratio = done.micro_steps / self._steps / configured if configured else 1.0
        times = _share(total.nbytes, expected.nbytes.low * ratio)
        forwards, slack = _share(done.forwards, done.micro_steps), 1 + self._tolerance
        trains = configured or done.forwards > done.micro_steps
        often = f"gathered {plural(times, 'time')} per {'micro-step' if trains else 'forward'}"
        if times < 1:
            return f"{often}: some were still gathered, or not needed"
        if times <= 2 * slack:
            return f"{often}: released or resharded before their next use"
        if done.recomputing_ranks and times <= 3 * slack:
            return f"{often}: once more for recomputation"
        if forwards > slack and times <= 3 * forwards * slack:
            return f"{often}: {count(forwards)} forwards per micro-step (evaluation, generation)"
        return ""

    def unexpected(self, sent: Sent, amount: Amount, *, is_minor: bool) -> Line:
        """Name who asked for traffic that the configuration does not ask for."""
        at = f" at {sent.site}" if sent.site else ""
        cause, verdict = "", "explained"
        if self._repeats_gradients(sent, amount):
            verdict = "unexplained"
            cause = f"as many bytes as the gradients{at}: are they reduced a second time?"
        elif self._is_sparse and _is_gathered_in_backward(sent):
            cause = "sparse gradients: indices and values of embeddings with sparse=True"
        elif sent.role not in ("", "data"):
            cause = ROLES.get(sent.role, sent.role)
        elif sent.family in _MAKES:
            cause = _MAKES[sent.family]
        elif sent.family == "broadcast" and self._terms.stage < 0:
            cause = f"asked for by the program, or buffers of DDP (broadcast_buffers){at}"
        elif not sent.by_library or self._terms.stage < 0:
            cause = f"asked for by the program{at}"
        elif sent.family == "all_gather" and self._terms.stage == 3:
            cause = (
                f"gathered outside of forward and backward{at}: GatheredParameters, "
                "a checkpoint, generation"
            )
        elif not sent.phase:
            cause = f"outside of forward, backward and step{at}: building an engine, "
            cause += "a checkpoint, generation"
        elif sent.family == "all_reduce" and self._terms.pipeline_stages > 1:
            cause = "weights that stages of the pipeline share"
        elif is_minor:
            cause = f"small{at}"
        else:
            verdict, cause = "unexplained", f"requested through deepspeed.comm{at}"
        return self._line("other", {sent: amount}, None, "", verdict, cause)  # type: ignore[arg-type]

    def _repeats_gradients(self, sent: Sent, amount: Amount) -> bool:
        reduces = sent.family in ("all_reduce", "reduce_scatter") and sent.role in ("", "data")
        gradients = [e for demand, e in self._account.demands.items() if demand.kind == "gradients"]
        if not reduces or not gradients:
            return False
        size = item_bytes(self._terms.gradient_dtype)
        once = gradients[0].nbytes.low / size / max(self._terms.reductions, 1)
        return bool(once) and abs(amount.elements / once - 1) <= self._tolerance

    def small(self) -> Iterator[Line]:
        """Sum up the messages that are too small to carry gradients, by who asked for them."""
        known = {"small messages": "norms, overflow flags", _OWN: "losses, metrics, barriers"}
        for what, cause in known.items():
            sent = {
                one: amount
                for one, amount in self._account.sent.items()
                if one.kind == "small" and one.by_library is (what != _OWN)
            }
            if sent:
                yield self._line(what, sent, None, "", "explained", cause)

    def _line(
        self,
        what: str,
        sent: dict[Sent, Amount],
        expected: Expected | None,
        why: str,
        verdict: Verdict,
        cause: str,
    ) -> Line:
        total, steps = sum(sent.values(), Amount(0, 0, 0)), self._steps
        calls = expected.calls if expected is not None else None
        nbytes = expected.nbytes if expected is not None else None
        return Line(
            what,
            why,
            tuple(sorted({one.family for one in sent})),
            (calls.low / steps, calls.high / steps) if calls is not None else None,
            (nbytes.low / steps, nbytes.high / steps) if nbytes is not None else None,
            total.calls / steps,
            total.nbytes / steps,
            verdict,
            cause,
        )


def _is_gathered_in_backward(sent: Sent) -> bool:
    is_library = sent.kind == "other" and sent.by_library and sent.role in ("", "data")
    return is_library and sent.family == "all_gather" and sent.phase == "backward"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
