"""The terms that reports use, explained: for docs/reference/glossary.md and for pages."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """A term in one or two sentences, with the page that says more, relative to docs/."""

    meaning: str
    link: str = ""


_COMM = "reference/formulas.md#exposed-communication"
_BANDWIDTH = "reference/formulas.md#bandwidth"

GLOSSARY = {
    "aggregate": Term(
        "A small value that is collected from one rank's trace and merged over ranks. Rules read "
        "aggregates and nothing else.",
        "background/how-it-works.md#on-any-machine",
    ),
    "algbw": Term(
        "Algorithm bandwidth: bytes of a collective over its time, as nccl-tests define it.",
        _BANDWIDTH,
    ),
    "arrival": Term(
        "The moment at which a rank enters a collective.",
        "reference/formulas.md#waiting-for-the-last-arrival",
    ),
    "baseline": Term(
        "What `dsprof bench` measured on a machine: collectives, matrix products and contention. "
        "Reports compare with it.",
        "reference/bench.md",
    ),
    "blocked time": Term(
        "Time in which a collective keeps a rank, or a stream of its device, from making progress.",
        _COMM,
    ),
    "bucket": Term(
        "A buffer in which gradients are collected, so that one collective reduces many of them. "
        "ZeRO counts its size in elements, DDP in bytes."
    ),
    "busbw": Term(
        "Bus bandwidth: algbw times a factor of operation and group size, so that it compares with "
        "the bandwidth of a link.",
        _BANDWIDTH,
    ),
    "call site": Term("The line of the program that issued a collective."),
    "capture": Term(
        "The next steps, which all ranks of a job with `mode: always` keep in full detail because "
        "`dsprof capture`, a signal or an event asked for them. Of CUDA graphs: recording work on "
        "the device, to replay it.",
        "how-to/leave-it-on.md#keep-the-next-steps",
    ),
    "clock alignment": Term(
        "Finding the offset between the clocks of two hosts from collectives that no rank leaves "
        "before all have entered. The report states its error.",
        "reference/formulas.md#clocks",
    ),
    "collective": Term(
        "An operation that all ranks of a process group call together, such as all-reduce, "
        "all-gather or reduce-scatter."
    ),
    "compute": Term(
        "Time in forward, backward and optimizer step that is neither blocked time nor a copy; on "
        "a profiled device, time of computing kernels.",
        "reference/formulas.md#parts-of-a-step",
    ),
    "confidence": Term(
        "How sure a finding is: low, medium or high. It is empty where nothing is claimed."
    ),
    "contention": Term(
        "The share of hidden communication that returns as slower computation, because both use "
        "the same processors and memory.",
        "reference/bench.md#what-is-measured",
    ),
    "counted step": Term(
        "A step outside the recorded window, or after the budget was spent: its collectives are "
        "counted, not recorded in detail.",
        "reference/formulas.md#measured-steps",
    ),
    "epoch": Term(
        "Of a run: from one start of the process group to the next, as after a restart. Not a pass "
        "over the data.",
        "how-to/restarts.md",
    ),
    "exposed communication": Term(
        "Time of a step in which a rank waits for communication and makes no other progress: the "
        "union of its blocked intervals.",
        _COMM,
    ),
    "facet": Term(
        "What another rule says of the same cause. It is shown with the finding that explains it, "
        "not as a finding of its own.",
        "rules/README.md#one-finding-for-each-cause",
    ),
    "fetch": Term(
        "An all-gather of the parameters that a module needs, by ZeRO-3 or FSDP, when they are "
        "needed."
    ),
    "finding": Term(
        "What a rule states about a run: failed, informational, passed, not applicable, unknown, "
        "or an error of the rule.",
        "reference/json.md#a-finding",
    ),
    "flush": Term("Sending the gradients of a bucket, or of an FSDP unit, to be reduced."),
    "flight recorder": Term(
        "torch's ring buffer of the latest collectives. torch dumps it on a timeout or on demand.",
        "reference/files.md",
    ),
    "idle": Term(
        "Time in which a device runs neither a kernel nor a copy. A host clock cannot measure it.",
        "reference/formulas.md#time-of-a-device",
    ),
    "in flight": Term(
        "A collective is in flight from its issue to its completion.",
        "reference/formulas.md#completion-and-time-in-flight",
    ),
    "informational": Term(
        "True and worth knowing, but no setting would improve it. An informational finding never "
        "fails a check."
    ),
    "intent": Term(
        "The bytes and operations that the configuration asks for. dsprof compares intent, "
        "requests and the wire.",
        "reference/formulas.md#traffic-asked-for",
    ),
    "issue": Term("The call that starts a collective."),
    "measured steps": Term(
        "The steps after warm-up that were recorded in full detail. Totals, averages and rules "
        "use them.",
        "reference/formulas.md#measured-steps",
    ),
    "micro-step": Term("One forward and backward. With gradient accumulation a step has several."),
    "model FLOPs utilisation": Term(
        "MFU: the operations that the model needs over what the hardware can do in the same time.",
        "reference/formulas.md#model-flops-utilisation",
    ),
    "overlap": Term(
        "The share of the time in flight that is not exposed: communication that runs beside "
        "computation.",
        "reference/formulas.md#overlap",
    ),
    "phase": Term(
        "A part of a step that a library marks: forward, backward, step, generate, or an "
        "instruction of a pipeline."
    ),
    "pipeline bubble": Term(
        "The share of a pipeline's schedule in which a stage has no micro-batch.",
        "reference/formulas.md#pipeline-bubble",
    ),
    "prefetch": Term(
        "A fetch that starts before its parameters are needed, so that computation can hide it."
    ),
    "process group": Term(
        "The ranks that communicate in a collective. dsprof names its role, such as data, tensor "
        "or pipeline parallelism.",
        "background/what-is-seen.md#what-it-means",
    ),
    "rank": Term("A process of the run, by its number in the world (global rank)."),
    "recorded window": Term(
        "With `mode: window` the steps that are recorded in full detail (`start_step`, `steps`, "
        "`every`). In other steps collectives are only counted.",
        "reference/formulas.md#measured-steps",
    ),
    "release, reshard": Term(
        "Freeing gathered parameters, so that only the rank's shard stays. ZeRO-3 releases, FSDP "
        "reshards."
    ),
    "request": Term(
        "What the program or DeepSpeed asked its communication layer for. One request may cause "
        "several collectives on the wire, or none.",
        "reference/trace-format.md#records",
    ),
    "saving": Term(
        "How much shorter a step becomes by the change that a finding advises, as a range in ms.",
        "background/savings.md",
    ),
    "segment": Term(
        "A block of device memory that torch's caching allocator requested from the driver and "
        "divides into pieces."
    ),
    "severity": Term("How much a failed rule matters: critical, high, medium or low."),
    "single-rank group": Term("A process group with a single rank. Its collectives move no data."),
    "stall": Term(
        "Time in which communication blocks a stream of a device, measured between two events.",
        "background/cuda.md",
    ),
    "step": Term(
        "One optimizer step, from the end of the step before it to its own end.",
        "reference/formulas.md#measured-steps",
    ),
    "straggler": Term(
        "A late rank: it arrives after all others, which wait for it.", "rules/late-rank.md"
    ),
    "stuck memory": Term(
        "Free pieces inside segments of which other parts are in use. They can serve only requests "
        "that fit into one of them.",
        "rules/allocator-fragmentation.md",
    ),
    "trailer": Term(
        "The last record of a trace: why it ended, and its totals. A killed process writes none.",
        "reference/trace-format.md",
    ),
    "transfer": Term(
        "The time of a collective after all ranks have arrived: its time in flight on the rank "
        "that arrived last.",
        "reference/formulas.md#transfer",
    ),
    "unknown": Term("An input that the verdict needs is missing. Missing is not zero."),
    "wait": Term(
        "The call in which a rank waits for a collective, or its blocked time there.", _COMM
    ),
    "warm-up": Term(
        "The first steps of a recording, which totals and rules leave out: two, or one of fewer "
        "than four.",
        "reference/formulas.md#measured-steps",
    ),
    "wire": Term(
        "What process groups really sent: operations and bytes as recorded below torch.distributed."
    ),
}
"""The terms, by the names that sentences use."""


def meaning(label: str) -> str:
    """Explain the term that a heading names; empty where it names none."""
    term = GLOSSARY.get(label.lower())
    return term.meaning.replace("`", "") if term else ""
