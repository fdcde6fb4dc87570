"""Enables and disables dsprof around training in several ways; writes what was left changed.

OUT/lifecycle.json: {way: {"changed_while_on": count, "changed_after": [target]}}
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch.distributed as dist

import dsprof
from dsprof.hooks.registry import HOOKS, WIRE_HOOKS
from tests.dist.leaving import leave_group
from tests.dist.programs import small_zero

STEPS = 3
Attributes = dict[str, Any]


def attributes() -> Attributes:
    """What stands in each place that a hook may replace: the raw object, as no getattr gives it."""
    targets = [target for hook in (*HOOKS, *WIRE_HOOKS.values()) for target in hook.targets]
    return {
        f"{target.module}.{target.owner}.{target.name}": vars(target.resolve()).get(target.name)
        for target in targets
        if target.is_there()
    }


def changed(before: Attributes) -> list[str]:
    now = attributes()
    return [name for name, value in before.items() if now[name] is not value]


def late(out: str, train: Callable[[], None]) -> int:
    train()
    dsprof.enable(out=out)
    train()
    return len(changed(BEFORE))


def twice(out: str, train: Callable[[], None]) -> int:
    dsprof.enable(out=out)
    count = len(changed(BEFORE))
    dsprof.enable(out=out)
    train()
    assert len(changed(BEFORE)) == count
    return count


def again(out: str, train: Callable[[], None]) -> int:
    dsprof.enable(out=out)
    train()
    dsprof.disable()
    dsprof.enable(out=out)
    train()
    return len(changed(BEFORE))


def in_process_group(out: str, train: Callable[[], None]) -> int:
    dsprof.enable(out=out, interception="process_group")
    train()
    return len(changed(BEFORE))


BEFORE = attributes()


def main() -> None:
    out = Path(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    engine = small_zero.build(stage=2)

    def train() -> None:
        list(small_zero.losses(engine, STEPS))

    result = {}
    for way in (late, twice, again, in_process_group):
        count = way(str(out / way.__name__), train)
        dsprof.disable()
        result[way.__name__] = {"changed_while_on": count, "changed_after": changed(BEFORE)}
    if dist.get_rank() == 0:
        (out / "lifecycle.json").write_text(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main()
