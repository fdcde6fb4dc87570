"""host-setting: a limit, a kernel module or a setting of the hosts restricts communication."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings_rule import SettingsRule
from dsprof.rules.rule import RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Least limits of a host; -1 of a host is no limit."""

    shm_bytes: int = 1 << 30  # size of /dev/shm
    memlock_bytes: int = 16 << 30  # locked memory, where hosts are connected by RDMA
    open_files: int = 65_536  # with more than 64 ranks


class HostSetting(SettingsRule):
    """Looks for limits and settings of hosts."""

    meta = RuleMeta(
        id="host-setting",
        title="Host limits and settings are adequate",
        failing_title="A host limit or setting harms communication",
        why="Containers and batch systems start with limits that are too small for communication. "
        "The failure then appears far from its cause: a bus error, a hang, or TCP in place of "
        "RDMA.",
        category="environment",
        order=750,
        needs=(EnvironmentFacts,),
    )
    thresholds = Thresholds()
