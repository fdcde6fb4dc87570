from __future__ import annotations

import pytest

from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import size
from dsprof.rules.memory.device_out_of_memory import DeviceOutOfMemory
from dsprof.rules.memory.memory_growth import MemoryGrowth
from dsprof.rules.memory.unused_device_memory import UnusedDeviceMemory
from dsprof.rules.quality.data_quality import DataQuality
from dsprof.rules.runner import judge
from dsprof.trace.device_counters import ALLOCATED, DEVICE_TOTAL, PEAK_RESERVED, RESERVED, STUCK
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Trailer
from tests.factories import logs as make
from tests.factories.environment import rank_trace
from tests.factories.memory import GIB, on_device
from tests.factories.trace import summary
from tests.shared_data import log

RULE = DeviceOutOfMemory()
MEMORY_GROWTH = MemoryGrowth()
UNUSED_MEMORY = UnusedDeviceMemory()
DATA_QUALITY = DataQuality()

NEEDY = "The run needs more memory than the device has"
UNUSED = "A memory request failed although enough memory was unused"
CROWDED = "Another process holds memory of the same device"
OUTSIDE = "Memory of the device is held outside torch's allocator"
REFUSED = "A memory request failed although the device had free memory"
LIMITED = "A process reached its device memory limit"


def said(text: str) -> Finding:
    [finding] = judge(summary(*make.read(["[rank0]: " + text])), [RULE])
    assert finding.status is Status.FAIL
    return finding


@pytest.mark.parametrize(
    ("free", "unallocated", "title", "confidence"),
    [
        ("2.40 GiB", "0.50 GiB", NEEDY, "high"),
        ("2.40 GiB", "1.59 GiB", UNUSED, "low"),  # together enough, neither alone
        ("100.00 MiB", "3.40 GiB", UNUSED, "medium"),
    ],
)
def test_a_verdict_is_as_sure_as_its_sums(
    free: str, unallocated: str, title: str, confidence: str
) -> None:
    finding = said(make.out_of_memory("3.39 GiB", free=free, unallocated=unallocated))
    assert (finding.title, finding.confidence) == (title, confidence)


@pytest.mark.parametrize(
    ("asked", "free", "title"),
    [
        ("0.40 GiB", "7.00 GiB", REFUSED),
        ("4.00 GiB", "7.00 GiB", UNUSED),
        ("0.40 GiB", "0.90 GiB", UNUSED),
    ],
)
def test_a_device_with_free_memory_is_not_full(asked: str, free: str, title: str) -> None:
    assert said(make.out_of_memory(asked, free=free)).title == title


def test_the_sum_is_stated() -> None:
    finding = said(make.out_of_memory("3.39 GiB", free="2.40 GiB", unallocated="1.59 GiB"))
    assert finding.summary == (
        "Rank 0 ran out of device memory: it asked for 3.39 GiB, available: 2.40 GiB free on the "
        "device + 1.59 GiB reserved but unallocated = 3.99 GiB."
    )
    assert finding.cause.startswith("Free and unallocated memory cover the request only together")


@pytest.mark.parametrize(
    ("kind", "setting", "tool"),
    [
        ("CUDA", "Set PYTORCH_CUDA_ALLOC_CONF=", "with nvidia-smi on"),
        ("HIP", "Set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128", "with rocm-smi --showpids on"),
        ("NPU", "Set PYTORCH_NPU_ALLOC_CONF=", "with npu-smi info on"),
        ("XPU", "Set PYTORCH_ALLOC_CONF=", "with xpu-smi ps on"),
    ],
)
def test_the_advice_is_for_the_kind_of_device(kind: str, setting: str, tool: str) -> None:
    pieces = said(make.out_of_memory("3.39 GiB", unallocated="3.40 GiB").replace("CUDA", kind))
    assert pieces.action.startswith(setting)
    crowded = said(make.out_of_memory(process="49.00 GiB").replace("CUDA", kind))
    assert tool in crowded.action


def test_what_torch_does_not_state_lowers_the_confidence() -> None:
    unstated = make.out_of_memory().replace(" of which 100.00 MiB is free", "")
    finding = said(unstated)
    assert (finding.title, finding.confidence) == (NEEDY, "medium")
    assert "free on the device: not stated" in finding.summary


def test_a_neighbour_is_blamed_with_less_confidence_where_pieces_would_do() -> None:
    others = "Process 77 has 30.00 GiB memory in use. "
    alone = said(make.out_of_memory(others=others, process="49.00 GiB"))
    assert (alone.title, alone.confidence) == (CROWDED, "high")
    either = said(make.out_of_memory(others=others, process="49.00 GiB", unallocated="2.00 GiB"))
    assert (either.title, either.confidence) == (CROWDED, "medium")
    unlisted = said(make.out_of_memory(process="49.00 GiB"))
    assert (unlisted.title, unlisted.confidence) == (CROWDED, "medium")
    assert alone.summary.startswith("Process 77 takes")
    assert unlisted.summary.startswith("Memory of other processes takes")
    assert "used outside this process" in unlisted.summary
    assert either.cause.endswith("It would also fit if the unallocated memory were contiguous.")


@pytest.mark.parametrize(
    ("allocated", "reserved", "title", "confidence"),
    [
        ("0.40 GiB", "0.90 GiB", OUTSIDE, "medium"),
        ("42.00 GiB", "44.00 GiB", UNUSED, "medium"),  # less than half of the device
        ("90.00 GiB", "92.00 GiB", UNUSED, "medium"),  # more than there is, as drivers can swap
    ],
)
def test_memory_that_old_releases_of_torch_do_not_list(
    allocated: str, reserved: str, title: str, confidence: str
) -> None:
    text = make.OLD_OOM.format(allocated=allocated, reserved=reserved)
    finding = said(text)
    assert (finding.title, finding.confidence) == (title, confidence)
    held = "78.9 GiB of 80.0 GiB on rank 0's device"
    assert (held in finding.summary) is (title is OUTSIDE)
    assert finding.evidence[0].rows[0][-1] is None


def of_ranks(*texts: str) -> Finding:
    [finding] = judge(
        summary(*make.read([f"[rank{n}]: {text}" for n, text in enumerate(texts)])), [RULE]
    )
    assert finding.ranks == tuple(range(len(texts)))
    return finding


def test_of_several_ranks_the_worst_is_in_the_summary_and_all_are_in_the_table() -> None:
    held = ("20.00 GiB", "30.00 GiB", "25.00 GiB")
    finding = of_ranks(
        *(make.out_of_memory(others=f"Process 77 has {one} memory in use. ") for one in held)
    )
    assert "takes 30.0 GiB of 80.0 GiB on rank 1's device" in finding.summary
    assert [row[-1] for row in finding.evidence[0].rows] == [n << 30 for n in (20, 30, 25)]
    pieces = ("2.00 GiB", "4.00 GiB", "3.00 GiB")
    parted = of_ranks(*(make.out_of_memory(unallocated=one) for one in pieces))
    assert parted.summary.startswith("Ranks 0-2 ran out of device memory: rank 1 asked for ")


def holding(*pids: int) -> str:
    return "".join(f"Process {pid} has 9.00 GiB memory in use. " for pid in pids)


def test_what_another_rank_could_use_says_nothing_of_the_worst() -> None:
    free = make.out_of_memory(free="6.46 GiB", others=holding(70, 71), process="50.00 GiB")
    full = make.out_of_memory(free="0.33 GiB", others=holding(70, 71, 72), process="50.00 GiB")
    for finding in (of_ranks(free, full), of_ranks(free)):
        assert "contiguous" not in finding.cause
        assert finding.confidence == "high"


@pytest.mark.parametrize(
    ("pids", "subject"),
    [
        ((7,), "Process 7 takes 9.00 GiB"),
        ((7, 8), "Processes 7, 8 take 18.0 GiB"),
        ((6, 7, 8, 9), "4 processes take 36.0 GiB"),
    ],
)
def test_processes_are_counted(pids: tuple[int, ...], subject: str) -> None:
    finding = said(make.out_of_memory(others=holding(*pids), process="40.00 GiB"))
    assert finding.summary.startswith(subject)
    assert ", ".join(map(str, pids)) in finding.cause


@pytest.mark.parametrize(
    ("others", "are_told"),
    [
        (((1, 2, 77), (0, 2, 77), (0, 1, 77)), True),
        (((77,), (77,), (77,)), False),  # on each of their devices
        (((70,), (71,), (72,)), False),  # what an earlier run left on each device
    ],
)
def test_ranks_that_list_each_other_use_the_same_device(
    others: tuple[tuple[int, ...], ...], are_told: bool
) -> None:
    texts = (make.out_of_memory(others=holding(*pids), process="40.00 GiB") for pids in others)
    finding = of_ranks(*texts)
    shared = "Ranks 0-2 use the same device: each lists the others. "
    assert finding.summary.startswith(shared) is are_told
    assert finding.action.startswith("Call torch.cuda.set_device") is are_told


def test_what_rounding_leaves_is_held_by_no_one() -> None:
    text = make.out_of_memory(free="1.21 GiB", process="78.77 GiB", asked="3.00 GiB")
    assert "outside this process" not in said(text).summary


def test_one_rank_whose_memory_is_not_stated_makes_all_less_certain() -> None:
    stated = make.out_of_memory()
    unstated = stated.replace(" of which 100.00 MiB is free", "")
    assert of_ranks(stated, stated).confidence == "high"
    finding = of_ranks(stated, unstated)
    assert (finding.title, finding.confidence) == (NEEDY, "medium")
    assert [row[4] for row in finding.evidence[0].rows] == [100 << 20, None]


def test_a_device_without_a_free_byte_is_full_and_not_unknown() -> None:
    finding = said(make.out_of_memory(free="0 bytes"))
    assert finding.confidence == "high"
    assert finding.evidence[0].rows[0][4] == 0
    nothing = said(make.out_of_memory(free="0 bytes", unallocated="0 bytes", process="80.00 GiB"))
    assert (
        "available: 0 B free on the device + 0 B reserved but unallocated = 0 B." in nothing.summary
    )
    mib = 1 << 20
    assert nothing.evidence[0].rows == (
        (0, 0, 1024 * mib, 80 * 1024 * mib, 0, 78 * 1024 * mib, 0, 0),
    )


def test_what_fits_to_the_byte_fits() -> None:
    pieces = said(make.out_of_memory("4.00 GiB", free="2.50 GiB", unallocated="1.50 GiB"))
    assert pieces.title == UNUSED
    others = "Process 77 has 4.00 GiB memory in use. "  # the least share of the device that counts
    text = make.out_of_memory("5.00 GiB", free="1.00 GiB", unallocated="0 bytes", others=others)
    assert said(text).title == CROWDED
    assert "(PyTorch 2.1 or later" in pieces.action
    assert "; 4.00 GiB used by other processes" in said(text).summary
    assert said(text).cause.endswith("fragmentation and the model's size are not the cause.")


def test_a_setting_that_is_on_is_not_advised() -> None:
    lines = ["[rank0]: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
    lines += ["[rank0]: " + make.out_of_memory("1.00 GiB", unallocated="3.00 GiB")]
    [finding] = judge(summary(*make.read(lines)), [RULE])
    assert "already on" in finding.action


def test_a_setting_that_a_trace_has_is_not_advised() -> None:
    trace = rank_trace(0, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments: True"})
    trace.log = make.read([make.out_of_memory("1.00 GiB", unallocated="3.00 GiB")])[0].log
    [finding] = judge(summary(trace), [RULE])
    assert finding.action.startswith("expandable_segments is already on")


def test_a_setting_that_a_log_has_is_not_advised() -> None:
    trace = ended(72, stuck=48)
    trace.log = make.read(["[rank0]: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"])[0].log
    [finding] = judge(summary(trace), [RULE])
    assert "although expandable_segments is on" in finding.cause


def test_the_first_failures_are_listed() -> None:
    finding = of_ranks(*[make.out_of_memory()] * 40)
    assert [row[0] for row in finding.evidence[0].rows] == list(range(32))


@pytest.mark.parametrize(("allowed", "title"), [("40.00 GiB", LIMITED), ("79.90 GiB", NEEDY)])
def test_a_limit_that_was_not_reached_is_not_blamed(allowed: str, title: str) -> None:
    text = make.out_of_memory().replace("Of the all", f"{allowed} allowed; Of the all")
    assert said(text.replace("78.00 GiB", "77.00 GiB")).title == title


@pytest.mark.parametrize(
    ("pattern", "title", "confidence"),
    [
        ("logs/torchtitan_oom/run111*", NEEDY, "high"),
        ("logs/torchtitan_oom/run34*", CROWDED, "high"),
        ("logs/issues/gpt4llm*", UNUSED, "medium"),
        ("logs/issues/deepspeed_3869*", UNUSED, "medium"),
    ],
)
def test_real_failures(pattern: str, title: str, confidence: str) -> None:
    text = log(pattern).read_text(errors="replace").splitlines()
    findings = judge(summary(*make.read(text)), [RULE])
    assert [(f.title, f.confidence) for f in findings] == [(title, confidence)]


def ended(reserved: float, stuck: float = 0, rank: int = 0) -> RankTrace:
    """A rank that torch's error ended, with so many GiB of 80 reserved."""
    counters = {
        DEVICE_TOTAL: 80 * GIB,
        RESERVED: int(reserved * GIB),
        PEAK_RESERVED: int(reserved * GIB),
        STUCK: int(stuck * GIB),
    }
    trailer = Trailer("exit", exception="torch.OutOfMemoryError", steps=1, events=1)
    return on_device(counters, rank=rank, trailer=trailer)


@pytest.mark.parametrize(
    ("reserved", "stuck", "cause"),
    [
        (30, 0, "62 % of the device"),
        (72, 48, "67 % of the reserved"),
        (79, 1, "reserved most of"),
        (0, 0, "100 %"),
    ],
)
def test_a_trace_without_its_log_shows_what_was_left(reserved, stuck, cause) -> None:
    [finding] = judge(summary(ended(reserved, stuck)), [RULE])
    assert (finding.status, finding.ranks, finding.confidence) == (Status.FAIL, (0,), "low")
    assert f"had reserved {size(int(reserved * GIB))} of the device's 80.0 GiB" in finding.summary
    assert cause in finding.cause
    assert "expandable_segments" in finding.action or not stuck > 1


def growing(gib: float, *, has_log: bool) -> RankTrace:
    """A rank without memory in the end, whose tensors grew by so many GiB in each of 40 steps."""
    counters = {DEVICE_TOTAL: 80 * GIB, RESERVED: 79 * GIB}
    trace = ended(79)
    trace.memory = on_device(
        *(counters | {ALLOCATED: int(n * gib * GIB)} for n in range(40))
    ).memory
    if has_log:
        text = make.out_of_memory("3.39 GiB", free="2.40 GiB", unallocated="0.50 GiB")
        trace.log = make.read([f"[rank0]: {text}"])[0].log
    return trace


@pytest.mark.parametrize("has_log", [False, True])
def test_little_growth_is_not_what_filled_a_device(has_log: bool) -> None:
    [finding] = judge(summary(growing(0.1, has_log=has_log)), [RULE])
    assert "grew by" not in finding.cause


@pytest.mark.parametrize("has_log", [False, True])
def test_a_device_that_a_leak_filled_needs_no_smaller_batch(has_log: bool) -> None:
    finding, growth = judge(summary(growing(1, has_log=has_log)), [RULE, MEMORY_GROWTH])
    assert "grew by 1.00 GiB with each step" in finding.cause
    assert finding.action.startswith("Keep no tensors from step to step")
    assert [facet.rule for facet in finding.facets] == ["memory-growth"]
    assert growth.status is Status.NOT_APPLICABLE


def test_the_log_of_a_rank_says_more_than_its_trace() -> None:
    text = make.out_of_memory("3.39 GiB", free="2.40 GiB", unallocated="0.50 GiB")
    trace = ended(79)
    trace.log = make.read(["[rank0]: " + text])[0].log
    [finding] = judge(summary(trace), [RULE])
    assert finding.title == NEEDY


def test_a_rank_without_memory_is_not_told_to_read_its_traceback_or_to_use_more() -> None:
    found = judge(summary(ended(30), ended(30, rank=1)), [DATA_QUALITY, UNUSED_MEMORY])
    assert {finding.status for finding in found} <= {Status.PASS, Status.NOT_APPLICABLE}


def test_a_log_that_names_another_rank_gives_no_second_cause() -> None:
    """A line without a writer may be of the rank whose trace ends there."""
    trace = ended(72, stuck=48, rank=3)
    logs = make.read([make.out_of_memory("3.39 GiB", free="2.40 GiB", unallocated="0.50 GiB")])
    [finding] = judge(summary(*logs, trace), [RULE])
    assert (finding.title, finding.ranks) == (NEEDY, (3,))


@pytest.mark.parametrize("kind", ["ray.exceptions.OutOfMemoryError", "cupy.OutOfMemoryError"])
def test_memory_of_others_is_not_that_of_torch(kind: str) -> None:
    trailer = Trailer("exit", exception=kind, steps=1, events=1)
    trace = on_device({DEVICE_TOTAL: 80 * GIB, RESERVED: 8 * GIB}, trailer=trailer)
    [finding] = judge(summary(trace), [RULE])
    assert finding.status is Status.NOT_APPLICABLE


def test_a_log_of_each_rank_leaves_the_others_to_their_traces() -> None:
    """The first rank caught its error, and went on."""
    caught = "[rank0]: " + make.out_of_memory("3.39 GiB", free="2.40 GiB", unallocated="0.50 GiB")
    trace = ended(72, stuck=48, rank=3)
    trace.log = make.read(["[rank3]: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"])[0].log
    findings = judge(summary(*make.read([caught]), trace), [RULE])
    assert sorted((finding.ranks, finding.confidence) for finding in findings) == [
        ((0,), "high"),
        ((3,), "low"),
    ]


def test_a_request_in_a_line_of_no_rank_accuses_none() -> None:
    logs = make.read(make.run(make.out_of_memory()))
    [finding] = judge(summary(*logs), [RULE])
    assert finding.summary.startswith("A rank ran out of device memory: it asked for 1.00 GiB")
    assert (finding.ranks, finding.evidence[0].rows[0][0]) == ((), None)


def test_a_request_that_a_rank_states_too_is_its_own() -> None:
    logs = make.read(make.run(make.out_of_memory(), f"[rank2]: {make.out_of_memory()}"))
    [finding] = judge(summary(*logs), [RULE])
    assert finding.summary.startswith("Rank 2 ran out of device memory: ")
    assert (finding.ranks, len(finding.evidence[0].rows)) == ((2,), 1)
