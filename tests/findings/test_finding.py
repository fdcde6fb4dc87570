"""What a rule may set in a finding is a field of it, of the same type."""

from typing import get_type_hints

from dsprof.findings.finding import Details, Finding


def test_details_are_fields_of_a_finding():
    fields = get_type_hints(Finding)
    assert {name: fields.get(name) for name in get_type_hints(Details)} == get_type_hints(Details)
    assert fields.keys() - Details.__annotations__.keys() == {
        *("rule", "status", "summary", "category", "docs"),  # set by RuleMeta.finding
        "facets",  # set when findings of one cause are joined
    }
