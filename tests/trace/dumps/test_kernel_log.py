"""What a kernel's log says of processes and devices."""

from __future__ import annotations

import pytest

from dsprof.trace.dumps.kernel_log import START, KernelMessage, messages

XID = "NVRM: Xid (PCI:0000:9b:00): "


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[22859.5] x\n[22859.081860] NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=a, Ch 30",
            ("program", 7, "Xid 31, a kernel of the program accessed an address that is not "
             "mapped"),
        ),
        (f"[Wed Jan 27 23:04:35 2021] {XID}43, pid=8, Ch 8", ("program", 8, "Xid 43, a kernel of "
         "the program failed")),
        (f"[1.000000] {XID}79, pid='<unknown>', name=<unknown>, GPU has fallen", ("device", -1,
         "Xid 79, it has fallen off the bus")),
        (f"[1.000000] {XID}13, Graphics Exception: ESR 0x5", ("program", -1, "Xid 13, a kernel of "
         "the program failed")),
        (f"[1.000000] {XID}999, pid=9, new", ("device", 9, "Xid 999")),
        ("[1.000000] Memory cgroup out of memory: Killed process 10 (python3) total-vm:1kB",
         ("killed", 10, "")),
        ("[1.000000] Killed process 11 (python) total-vm:55518724kB", ("killed", 11, "")),
        ("[1.000000] python3[12]: segfault at 0 ip 07f sp 07f error 4 in libtorch_cpu.so[7f+1]",
         ("crashed", 12, "segfault in libtorch_cpu.so")),
        ("[1.000000] traps: python3[13] general protection fault ip:7f sp:7f error:0",
         ("crashed", 13, "general protection fault")),
        ("[1.000000] INFO: task pt main:14 blocked for more than 120 seconds.",
         ("blocked", 14, "120 s")),
    ],
)  # fmt: skip
def test_what_a_line_says(line: str, expected: tuple[str, int, str]) -> None:
    assert START.search(line)
    [one] = messages(line)
    assert (one.kind, one.pid, one.what) == expected


def test_who_wrote_a_line_and_when() -> None:
    killed = "Out of memory: Killed process 5 (python3) total-vm:1kB"
    lines = (
        f"[  12.500000] {killed}",
        f"<4>[12.500000] {killed}",
        f"[Wed Jan 27 23:04:35 2021] {killed}",
        f"Nov  4 12:00:01 node7 kernel: [   12.500000] {killed}",
        f"2026-11-30T06:01:29,123456+00:00 {killed}",
    )
    found = messages("\n".join(lines))
    assert [(one.when, one.boot_ns, one.host) for one in found] == [
        ("12.500000 s after boot", 12_500_000_000, ""),
        ("12.500000 s after boot", 12_500_000_000, ""),
        ("Wed Jan 27 23:04:35 2021", None, ""),
        ("Nov  4 12:00:01", None, "node7"),
        ("2026-11-30T06:01:29,123456+00:00", None, ""),
    ]


def test_the_errors_that_follow_name_the_process_of_a_device() -> None:
    text = (
        f"{XID}79, GPU has fallen\n{XID}45, pid=77, name=python3, Ch 1 caused by Xid 79\n{XID}79, x"
    )
    assert messages(text) == [
        KernelMessage("device", pid, what="Xid 79, it has fallen off the bus", address="0000:9b:00")
        for pid in (77, -1)
    ]


def test_what_amd_says_of_its_devices() -> None:
    at = "[1.000000] amdgpu 0000:c2:00.0: amdgpu: "
    text = (
        f"{at}[gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32773)\n"
        f"{at} in process python3 pid 5578 thread python3 pid 5579\n"
        f"{at}[mmhub0] no-retry page fault (src_id:0, for process a b pid 7 thread a pid 8)\n"
        "[1.0] amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB) detected!\n"
        f"{at}GPU reset begin!\n"
        f"{at}ring gfx_0.0.0 uses VM inv eng 0 on hub 0\n"
    )
    unmapped = "a kernel of the program accessed an address that is not mapped"
    assert [(one.kind, one.pid, one.what) for one in messages(text)] == [
        ("program", 5578, unmapped),
        ("program", 7, unmapped),
        ("device", -1, "an uncorrectable hardware error"),
        ("device", -1, "a reset"),
    ]


def test_other_text_says_nothing() -> None:
    assert (
        messages("[1.0] usb 1-1: new device\nKilled process\nNVRM: Xid (x): y\n[rank0] a[1]") == []
    )
