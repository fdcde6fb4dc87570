"""What a kernel's log says of processes and devices."""

from __future__ import annotations

import json
from datetime import datetime
from io import BytesIO

import pytest

from dsprof.trace.dumps.kernel_log import START, KernelMessage, marked, messages

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
        ("[1.000000] NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 999, pid=8, Ch 8",  # MIG
         ("device", 8, "Xid 999")),
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
        ("[1.000000] traps: pt main[15] trap int3 ip:7f sp:7f error:0 in libc.so.6[7f+1]",
         ("crashed", 15, "trap int3 in libc.so.6")),
        ("[1.000000] traps: python3[16] trap invalid opcode ip:7f sp:7f error:0",
         ("crashed", 16, "trap invalid opcode")),
        ("[1.000000] Killed process 17, UID 500, (python3) total-vm:1kB", ("killed", 17, "")),
        (f"[1.000000] {XID}149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x1)", ("device", -1, "Xid "
         "149, NVLink error")),
        (f"[1.000000] {XID}137, pid=8, name=a, MMU Fault: NVLink", ("program", 8, "Xid 137, a "
         "kernel of the program accessed memory of another GPU that is not mapped")),
        ("[1.000000] INFO: task pt main:14 blocked for more than 120 seconds.",
         ("blocked", 14, "120 s")),
    ],
)  # fmt: skip
def test_what_a_line_says(line: str, expected: tuple[str, int, str]) -> None:
    assert START.search(line)
    [one] = messages(line)
    assert (one.kind, one.pid, one.what) == expected


@pytest.mark.parametrize(
    ("prefix", "when", "boot_s", "host"),
    [
        ("[  12.500000]", "12.500000 s after boot", 12.5, ""),
        ("<4>[12.500000]", "12.500000 s after boot", 12.5, ""),
        ("[   12.500000][ T4711]", "12.500000 s after boot", 12.5, ""),  # a serial console
        ("kern  :err   : [   12.500000]", "12.500000 s after boot", 12.5, ""),  # dmesg -x
        ("[   12.500000 <    0.000017>] [T4711]", "12.500000 s after boot", 12.5, ""),  # -d
        ("[   12.500000] node7 kernel:", "12.500000 s after boot", 12.5, "node7"),
        ("[   12.500000] kernel:", "12.500000 s after boot", 12.5, ""),
        ("[Wed Jan 27 23:04:35 2021]", "Wed Jan 27 23:04:35 2021", None, ""),
        ("kern  :err   : [Wed Jan 27 23:04:35 2021]", "Wed Jan 27 23:04:35 2021", None, ""),
        ("[Mi Jan 27 23:04:35 2021]", "Mi Jan 27 23:04:35 2021", None, ""),  # German
        ("[水  1月 27 23:04:35 2021]", "水  1月 27 23:04:35 2021", None, ""),
        ("\x1b[32m[   12.500000] \x1b[0m\x1b[33m", "12.500000 s after boot", 12.5, ""),  # --color
        ("\x1b[32m[Jan27 23:04] \x1b[0m", "Jan27 23:04", None, ""),
        ("3,3964,12500000,-;", "12.500000 s after boot", 12.5, ""),  # /dev/kmsg
        ("3,3964,12500000,-,caller=T4711;", "12.500000 s after boot", 12.5, ""),
        ("<3>1 2026-11-30T06:01:29.1Z node7 kernel - - - [12.500000]", "2026-11-30T06:01:29.1Z",
         12.5, "node7"),  # RFC 5424
        ("<3>1 2026-11-30T06:01:29.1Z node7 kernel - - -", "2026-11-30T06:01:29.1Z", None, "node7"),
        ("[Jan27 23:04]", "Jan27 23:04", None, ""),
        ("[Jan27 23:04] x\n[  +0.000017]", "Jan27 23:04", None, ""),
        ("Nov  4 12:00:01 node7 kernel: [   12.500000]", "Nov  4 12:00:01", 12.5, "node7"),
        ("Nov  4 12:00:01 node7 kernel:[12.500000]", "Nov  4 12:00:01", 12.5, "node7"),
        ("Nov 04 12:00:01.123456 n-7.a kernel:", "Nov 04 12:00:01.123456", None, "n-7.a"),
        ("Mon 2024-04-29 14:55:41 CEST node7 kernel:", "Mon 2024-04-29 14:55:41 CEST", None,
         "node7"),
        ("1714395341.678628 node7 kernel:", "1714395341.678628", None, "node7"),
        ("2026-11-30T06:01:29,123456+00:00", "2026-11-30T06:01:29,123456+00:00", None, ""),
        ("2026-11-30T06:01:29.123456+01:00 node7 kernel: [ T4711]",
         "2026-11-30T06:01:29.123456+01:00", None, "node7"),
        ("2026-11-30T06:01:29+0100 node7 kernel:", "2026-11-30T06:01:29+0100", None, "node7"),
    ],
)  # fmt: skip
def test_who_wrote_a_line_and_when(prefix: str, when: str, boot_s: float | None, host: str) -> None:
    gap = "" if prefix.endswith((";", "m")) else " "
    text = f"{prefix}{gap}Out of memory: Killed process 5 (python3) total-vm:1kB\r\n"
    assert START.search(text)
    [one] = messages(text)
    boot_ns = None if boot_s is None else round(boot_s * 1e9)
    assert (one.when, one.boot_ns, one.host, one.pid) == (when, boot_ns, host, 5)


@pytest.mark.parametrize(
    ("when", "first", "last"),
    [
        ("1714395341.678628", "2024-04-29T12:55:41", "2024-04-29T12:55:41"),
        ("2024-04-29T14:55:41,678628+02:00", "2024-04-29T12:55:41", "2024-04-29T12:55:41"),
        ("2024-04-29T14:55:41Z", "2024-04-29T14:55:41", "2024-04-29T14:55:41"),
        ("Mon 2024-04-29 14:55:41 CEST", "2024-04-29T00:55:41", "2024-04-30T02:55:41"),
        ("Wed Jan 27 23:04:35 2021", "2021-01-27T09:04:35", "2021-01-28T11:04:35"),
        ("Dec 31 23:00:00", "2023-12-31T09:00:00", "2024-01-01T11:00:00"),
        ("Feb29 07:14", "2024-02-28T17:14:00", "2024-02-29T19:14:00"),
    ],
)
def test_which_moments_a_time_can_mean(when: str, first: str, last: str) -> None:
    found = KernelMessage("killed", 1, when=when).between_ns(utc_ns("2024-01-02T00:00:00"))
    assert found == (utc_ns(first), utc_ns(last))


@pytest.mark.parametrize("when", ["", "12.5 s after boot", "июл 27 14:08:03", "Feb 31 12:00:00"])
def test_no_moment_is_made_up(when: str) -> None:
    assert KernelMessage("killed", 1, when=when).between_ns(0) is None


def utc_ns(at: str) -> int:
    moment = datetime.fromisoformat(f"{at}+00:00")
    return round(moment.timestamp()) * 10**9


def test_of_a_long_log_only_what_matters_is_kept() -> None:
    killed = b"Nov  4 12:00:01 node7 kernel: Killed process 5 (python3) total-vm:1kB\r\n"
    log = BytesIO(b"x" * (3 << 20) + b"\n" + b"Nov  4 12:00:00 node7 cron: y\n" * 99_999 + killed)
    kept = marked(log.read(9), log.read)
    assert len(kept) < 4096
    assert [one.pid for one in messages(kept)] == [5]


@pytest.mark.parametrize(
    "line",
    [
        "Nov  4 12:00:01 node7 oomd[7]: Killed process 5 (python3) total-vm:1kB",
        "[   12.500000] node7 train[7]: Killed process 5 (python3) total-vm:1kB",
        "[   12.500000] I said: Killed process 5 (python3) total-vm:1kB",
        "[rank0]: this kernel: Killed process 5 (python3) total-vm:1kB",
        "2024-04-29 14:55:41,678 root: python3[5]: segfault at 0",
    ],
)
def test_other_programs_do_not_speak_for_the_kernel(line: str) -> None:
    assert messages(line) == []


def test_a_name_cannot_steer_a_terminal() -> None:
    [one] = messages("[1.000000] Killed process 5 (\x1b[31mx\x1b) total-vm:1kB")
    assert one.name == "x?"


def test_the_journal_as_json() -> None:
    entry = {"__REALTIME_TIMESTAMP": "1714395341678628", "_HOSTNAME": "node7", "PRIORITY": "3"}
    killed = {"MESSAGE": "Out of memory: Killed process 5 (python3) total-vm:1kB"}
    lines = [
        json.dumps(entry | killed | {"_TRANSPORT": by}, separators=(",", ":"))
        for by in ("kernel", "stdout")
    ]
    assert START.search(lines[0])
    deep = '{"x":' * 9999
    [one] = messages("\n".join([*lines, lines[0][:90], '{"MESSAGE":[1,2]}', deep]))
    assert (one.pid, one.host, one.when) == (5, "node7", "1714395341.678628")


def test_syslogs_of_the_kernel_and_others_are_recognised() -> None:
    for start in (
        "Nov  4 00:00:01 node7 CRON[812]: x",
        "2026-11-30T06:01:29.1+00:00 n systemd[1]: x",
    ):
        assert START.search(start)
    for start in ("[rank0]: epoch 1", "step 12 loss: 3.1", '{"rank": 0}', "INFO:root:kernel: x"):
        assert not START.search(start)


def test_the_errors_that_follow_name_the_process_of_a_device() -> None:
    text = (
        f"[1.000000] {XID}79, GPU has fallen\n"
        f"[1.000000] {XID}45, pid=77, name=python3, Ch 1 caused by Xid 79\n"
        f"[1.000000] {XID}79, x"
    )
    assert [(one.pid, one.what) for one in messages(text)] == [
        (pid, "Xid 79, it has fallen off the bus") for pid in (77, -1)
    ]


@pytest.mark.parametrize(
    "said",
    [
        "106, SMBPBI Test Message",
        "121, C2C error",
        "156, Resource Retirement Event",
        "161, Channel Retirement Failure",
        "165, PSHC zero lifetime",
        "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13",
    ],
)
def test_what_ends_nothing_is_no_failed_device(said: str) -> None:
    assert messages(f"[1.000000] {XID}{said}") == []


def test_what_amd_says_of_its_devices() -> None:
    at = "[1.000000] amdgpu 0000:c2:00.0: amdgpu: "
    text = (
        f"{at}[gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32773)\n"
        f"{at} in process python3 pid 5578 thread python3 pid 5579\n"
        f"{at}[mmhub0] no-retry page fault (src_id:0, for process a b pid 7 thread a pid 8)\n"
        "[1.000000] amdgpu 0000:68:00.0: {1}uncorrectable hardware error(X) detected!\n"
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
