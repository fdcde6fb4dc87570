"""The cases: what the ranks do, and what a verdict must say of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tests.hangs import calm, faults, machine, network
from tests.hangs.draw import Draw
from tests.hangs.faults import Program, instead

Verdict = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, and the verdicts that are right; empty: any.

    `culprits` are the ranks to name where they are not the one that was drawn; `needs` are files
    that root has on a kernel that can do it. `says` is what a rank says in the run of a culprit
    that may still come; `timeout_s` is that of the process group, where it ends the run.
    """

    program: Program
    kinds: tuple[str, ...]
    causes: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()
    culprits: Callable[[Draw], Iterable[int]] = lambda draw: [draw.culprit]
    may_name_more: bool = False
    network: network.Fault | None = None
    has_memory_limit: bool = False
    needs: tuple[str, ...] = ()
    says: str = ""
    timeout_s: float = 8.0
    is_calm: bool = False

    @property
    def is_possible(self) -> bool:
        """Whether this process and machine can do it."""
        return all(os.access(path, os.W_OK) for path in self.needs)

    def problems(self, draw: Draw, verdict: Verdict) -> list[str]:
        """Return what is wrong with a verdict on this case."""
        if self.is_calm:
            is_right = verdict["kind"] in self.kinds
            return [] if is_right else [f"false alarm: {verdict['sentence']}"]
        named, culprits = set(verdict["ranks"]), set(self.culprits(draw))
        is_named = culprits <= named if self.may_name_more else culprits == named
        wrong = [] if is_named else [f"names ranks {sorted(named)}, not {sorted(culprits)}"]
        for key, right, is_value in (
            ("kind", self.kinds, verdict["kind"]),
            ("cause", self.causes, verdict["cause"]["kind"]),
            ("mismatch", self.mismatches, verdict["mismatch"]),
        ):
            if right and is_value not in right:
                wrong.append(f"{key} is {is_value}, not {' or '.join(map(str, right))}")
        return wrong


def _neighbours(draw: Draw) -> list[int]:
    return [draw.culprit, (draw.culprit + 1) % draw.ranks]


_STUCK = ("never_entered", "came_late", "deadlock")
_DIVERGED = ("never_entered", "mismatch", "deadlock")
_LOCKED = ("never_entered", "frozen")


def _diverged(program: Program, **more: Any) -> Case:
    return Case(program=program, kinds=_DIVERGED, **more)


def _differs(in_what: str, by_call: Program) -> Case:
    return Case(program=instead(by_call), kinds=("mismatch",), mismatches=(in_what,))


def _dies(how: Program, *causes: str, **more: Any) -> Case:
    return Case(program=instead(how), kinds=("died",), causes=causes, **more)


def _waits(how: Program, cause: str, kinds: tuple[str, ...] = _STUCK, **more: Any) -> Case:
    return Case(program=instead(how), kinds=kinds, causes=(cause,), **more)


def _network(fault: network.Fault) -> Case:
    return Case(
        program=faults.lose_network,
        kinds=("network",),
        network=fault,
        may_name_more=True,
        needs=network.NEEDS,
    )


def _store(how: str) -> Case:
    return Case(
        program=partial(faults.lose_store, how=how),
        kinds=("died", "network"),
        causes=("store",),
        culprits=lambda _: [],
    )


CASES: dict[str, Case] = {
    "skips": _diverged(instead(lambda _: None)),
    "other_op": _differs("op", faults.call_other_op),
    "other_size": _differs("size", lambda rank: rank.call(elements=1 << 16)),
    "other_dtype": _differs("dtype", lambda rank: rank.call(dtype=torch.float64)),
    "other_order": Case(program=faults.other_order, kinds=("deadlock",), may_name_more=True),
    "other_root": Case(program=faults.other_root, kinds=("mismatch",), mismatches=("root",)),
    "other_group": _diverged(instead(lambda rank: rank.call(group="third")), may_name_more=True),
    "raises_and_goes_on": _diverged(instead(faults.raise_and_go_on)),
    "dies_by_exception": _dies(faults.raise_error, "exception"),
    "killed": _dies(lambda _: os.kill(os.getpid(), signal.SIGKILL), "signal", "unknown"),
    "exits": _dies(lambda _: os._exit(3)),
    "aborts": _dies(lambda _: os.abort(), "signal", "unknown"),
    "out_of_memory": _dies(faults.run_out_of_memory, "out_of_memory"),
    "memory_limit": _dies(
        faults.fill_memory,
        "out_of_memory",
        has_memory_limit=True,
        needs=(str(machine.MEMORY / "cgroup.procs"),),
    ),
    "stopped": _waits(lambda _: os.kill(os.getpid(), signal.SIGSTOP), "stopped", ("frozen",)),
    "sleeps": _waits(faults.sleep_forever, "sleep"),
    "holds_interpreter": _waits(faults.hold_interpreter, "interpreter_lock", _LOCKED),
    "computes_in_c": _waits(faults.match_forever, "interpreter_lock", _LOCKED),
    "hangs_at_end": Case(
        program=faults.hang_at_end, kinds=("frozen",), causes=("interpreter_lock",)
    ),
    "spins": Case(
        program=instead(faults.spin),
        kinds=("never_entered",),
        causes=("unknown",),
        says=r"rank {culprit} has been busy at \S+faults\.py:\d+ spin for \d\S* s: ",
        timeout_s=40.0,
    ),
    "waits_for_lock": _waits(faults.wait_for_lock, "lock"),
    "waits_for_store": Case(
        program=instead(faults.wait_for_store), kinds=(*_STUCK, "died"), causes=("store",)
    ),
    "creates_group_on_one": Case(
        program=instead(faults.call_another_new_group),
        kinds=(*_STUCK, "died"),  # the store ends with its launcher
        causes=("diverged", "store"),
    ),
    "child_process": _waits(faults.wait_for_child, "child_process"),
    "monitored_barrier": Case(program=faults.monitored_barrier, kinds=_STUCK, causes=("sleep",)),
    "data_loader": _waits(faults.wait_for_worker, "data_loader"),
    "file_system": _waits(faults.read_pipe, "file_system"),
    "save_hangs": _waits(faults.save_to_pipe, "file_system"),
    "fuse": _waits(faults.read_fuse, "file_system", needs=(machine.FUSE,)),
    "early_end_of_epoch": Case(
        program=faults.ends_epoch_early, kinds=("never_entered", "died"), causes=("exited",)
    ),
    "only_on_one": _diverged(faults.only_on_one, may_name_more=True),
    "crossed_pipeline": Case(
        program=faults.crossed_pipeline, kinds=("deadlock",), culprits=_neighbours
    ),
    "zero3_branch": _diverged(partial(faults.train_zero3, fault="branch")),
    "zero3_without_tokens": _diverged(partial(faults.train_zero3, fault="no tokens")),
    "zero3_checkpoint_on_one": _diverged(partial(faults.train_zero3, fault="checkpoint")),
    "experts_without_tokens": _diverged(faults.route_tokens),
    "store_dies": _store("end"),
    "store_stops": _store("stop"),
    "creates_no_group": Case(
        program=faults.create_group_late, kinds=("never_entered",), causes=("sleep",)
    ),
    "network_cut": _network("cut"),
    "network_stalls": _network("stall"),
    "network_drops": _network("drop"),
}

CALM: dict[str, Program] = {
    "long_checkpoint": calm.calm(calm.save_slowly),
    "long_upload": calm.calm(calm.upload_slowly),
    "evaluation_on_one": calm.calm(calm.compute),
    "evaluation_in_barrier": calm.calm(calm.compute, call="barrier"),
    "first_compilation": calm.calm(calm.compile_model),
    "debugger": calm.calm(calm.stop_at_prompt),
    "debugger_attached": calm.calm(calm.stop_by_debugger),
    "laptop_slept": calm.calm(calm.sleep_as_a_laptop, on_all=True),
    "straggler": calm.straggle,
    "long_step": calm.calm(calm.sleep_a_step, on_all=True),
}
"""Runs that take long and are not stuck: no alarm, or one that says so."""

CASES |= {
    name: Case(program=program, kinds=("none", "slow"), is_calm=True)
    for name, program in CALM.items()
}
