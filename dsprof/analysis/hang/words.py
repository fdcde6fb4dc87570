"""Groups, calls and waits in words."""

from __future__ import annotations

from dsprof.analysis.aggregates.flight_recorders import DumpedRank
from dsprof.analysis.hang.flight_recorders import Apart, GroupState, Mismatch
from dsprof.findings.frames import shortened
from dsprof.findings.wording import duration, long_duration, named, size
from dsprof.trace.collectives import OTHER_SIDE

COPY_ALL = "Copy the traces of all hosts into one folder."


def apart(found: Apart) -> str:
    """Say why dumps are not of one moment, and which of two is the older one."""
    older = f"the dump of rank {found.older} is {long_duration(found.by_ns)} older"
    return (
        f"Unknown: the dumps were not made at the same moment. Rank {found.ahead} had completed "
        f"{found.op} {found.seq:,} of {_group(found.label)}, and rank {found.behind} had not "
        "called it."
        + (f" By their newest calls, {older}." if found.by_ns else "")
        + " Dump all ranks at once, and remove dumps of earlier starts."
    )


def difference(found: Mismatch) -> str:
    """Say in which respect ranks called a collective differently."""
    told = "; ".join(f"{value or 'none'} on {named(ranks)}" for value, ranks in found.values[:4])
    return f"Collective number {found.seq:,} of {found.label} differs in {found.what}: {told}."


_CAUSES = {
    "root": "The ranks passed different `src` or `dst`: a local rank or one within the group, "
    "where a global rank is meant.",
    "size": "The ranks passed tensors of different sizes: batches of different shapes, uneven "
    "shards, or different branches.",
    "dtype": "The ranks passed tensors of different dtypes: autocast or a conversion on some of "
    "them, or different branches.",
}


def branches(found: Mismatch) -> str:
    """Say how ranks come to call different collectives."""
    if found.is_of_threads:
        return threads(found.label, "differs")
    branch = (
        "The ranks took different branches: a condition on the rank, on data or on a loss, or an "
        "exception that one of them caught."
    )
    return (
        (branch if found.is_of_lines else _CAUSES.get(found.what, branch))
        + (" ZeRO-3 issued it: ranks run different modules." if found.is_of_zero3 else "")
        + (f" The last call in common is {_before(found)}." if found.before else "")
    )


def threads(label: str, differs: str) -> str:
    """Say that threads share a group."""
    return (
        "The training and a thread beside it, such as that of an asynchronous checkpoint or of "
        f"PowerSGD's callbacks over gloo, both call collectives of {label}: which comes first "
        f"{differs} from rank to rank."
    )


def _before(found: Mismatch) -> str:
    one = found.before
    at = f", called at {one.frame}" if one and one.frame else ""
    return f"{one.op if one else ''} {found.seq - 1:,} of {found.label}{at}"


def pair(dump: DumpedRank) -> str:
    """Name the first send or receive in flight, with its peer; "" if there is none."""
    for name, group in dump.groups.items():
        for entry in group.p2p_in_flight:
            members = dump.members.get(name, ())
            other = entry.target if entry.op == "send" else entry.source
            return entry.op + (f" with rank {members[other]}" if 0 <= other < len(members) else "")
    return ""


def missed(state: GroupState) -> str:
    """Name what ranks never entered; of a send, that is the receive, and the other way round."""
    if state.call and state.is_pair:
        return f"the {OTHER_SIDE.get(state.call.op, 'send')} that {call(state)} needs"
    return call(state)


def call(state: GroupState) -> str:
    """Name a call with its number, group, size and step."""
    if (one := state.call) is None:
        return f"collective {state.seq:,} of {group(state)}"
    details = [] if not one.nbytes else [size(one.nbytes)]
    details += [f"step {one.step}"] if one.step >= 0 else []
    within = f" ({', '.join(details)})" if details else ""
    return f"{one.op} {state.seq:,} of {group(state)}{within}"


def link(state: GroupState) -> str:
    """Name a call in a chain of waits."""
    return f"{state.call.op if state.call else 'collective'} {state.seq:,} of {state.label}"


def group(state: GroupState) -> str:
    """Name a group; one without a name of its own has a label like `group 3`."""
    return _group(state.label)


def _group(label: str) -> str:
    return label if label.startswith("group ") else f"group {label}"


def waited(state: GroupState) -> str:
    """Say who waited in a call, and how long."""
    held = f" {duration(state.waited_ns)}" if state.waited_ns else ""
    frame = shortened(state.call.frame) if state.call else ""
    at = f" at {frame.rsplit(' ', 1)[0]}" if frame else ""
    text = f"{named(state.waiting)} waited{held} in it{at}"
    if not state.failed:
        return text
    who = "" if state.failed == state.waiting else f" on {named(state.failed)}"
    return f"{text}, until an exception{who}"
