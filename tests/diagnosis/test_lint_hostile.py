"""Whatever stands in a configuration, every rule answers and none breaks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dsprof.config.deepspeed import WrittenConfig
from dsprof.diagnosis.lint import lint
from dsprof.findings.finding import Status
from dsprof.rules.knowledge.deepspeed.keys import keys, retired, section_of

SECTIONS = sorted({section_of(path) for path in (*keys(), *retired())})
VALUES: list[Any] = [
    *(None, True, -1, 10**400, math.nan, math.inf, 1.5, "", "auto", "\x1b[31m\u202e", [], {}),
    *([[]], {"": None}, {"enabled": {"enabled": "auto"}}, {"stage": [0, {}]}),
]


def filled(section: str, value: Any) -> dict[str, Any]:
    """A configuration in which every key of a section, and one more, has this value."""
    paths = [path for path in (*keys(), *retired()) if section_of(path) == section]
    inner: dict[str, Any] = {path.rpartition(".")[2]: value for path in paths} | {"": value}
    for name in filter(None, reversed(section.split("."))):
        inner = {name: inner}
    return inner


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("deepspeed", ["0.19.8", "0.12.6"])
def test_no_value_breaks_a_rule(value, deepspeed):
    for section in SECTIONS:
        config = WrittenConfig({"train_batch_size": 1, **filled(section, value)}, {}, True)
        broken = [f.summary for f in lint(config, deepspeed) if f.status is Status.ERROR]
        assert broken == [], section
