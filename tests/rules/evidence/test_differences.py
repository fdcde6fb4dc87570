"""Sentences and tables on what is not alike."""

from __future__ import annotations

from dsprof.findings.finding import Severity
from dsprof.rules.evidence.differences import Difference, Trait, summary, table


def of_driver(*values: str) -> Difference:
    held = {value: 1 << rank for rank, value in enumerate(values)}
    trait = Trait("driver", lambda _: held, Severity.MEDIUM, "hosts differ in speed")
    return Difference(trait, held)


def test_a_sentence_names_a_few_values_of_many() -> None:
    hosts = of_driver(*(f"535.{n}" for n in range(6)))
    assert summary([hosts]) == (
        "The driver differs: 535.0 on rank 0; 535.1 on rank 1; 535.2 on rank 2; 535.3 on rank 3; "
        "and 2 more values."
    )
    assert summary([hosts, hosts]).endswith("; and 2 more values, and 1 more difference.")
    assert len(table([hosts]).rows) == 6


def test_a_long_value_is_whole_in_the_table_only() -> None:
    text = "x" * 100
    found = of_driver("535.1", text)
    assert f"{'x' * 60}… (100 characters) on rank 1." in summary([found])
    assert table([found]).rows[1] == ("driver", text, "1", "hosts differ in speed")


def test_the_ranks_with_the_least_amount_stand_out() -> None:
    values = {"8": 0b0001, "7": 0b1110}
    ports = Trait("ports", lambda _: values, Severity.HIGH, "the least limits all", int)
    assert Difference(ports, values).ranks == (1, 2, 3)
    assert Difference(ports._replace(amount=None), values).ranks == (0,)
