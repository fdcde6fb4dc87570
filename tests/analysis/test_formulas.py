from __future__ import annotations

import re


def test_every_test_that_the_formulas_name_exists(request):
    root = request.config.rootpath
    text = (root / "docs" / "reference" / "formulas.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", text)
    assert len(named) > 10
    file = ""
    for path, test in named:
        file = path or file
        assert f"def {test}(" in (root / file).read_text(), f"{file} has no {test}"
