"""The configuration: where values come from, and every mistake at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsprof.config import (
    FIELDS,
    Config,
    find_settings,
    has_plugins,
    is_switched_on,
    load_config,
    load_thresholds,
    mirrored,
    unmirrored,
)
from dsprof.errors import ConfigError
from dsprof.rules import RULES


@dataclass(frozen=True)
class Overlap:
    overlap: float = 0.5
    steps: int = 3
    ops: tuple[str, ...] = ("all_reduce",)
    limit: int | None = None


SCHEMA = {"low-comm-overlap": Overlap, "small-collectives": Overlap}

WriteYaml = Callable[[str], str]


@pytest.fixture
def yaml_file(tmp_path: Path) -> WriteYaml:
    def write(text: str) -> str:
        path = tmp_path / "dsprof.yaml"
        path.write_text(text)
        return str(path)

    return write


def mistakes(variables: dict[str, str], **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(variables, options)
    return str(caught.value).splitlines()


def mistakes_of_file(path: str) -> list[str]:
    """The mistakes in a file, without its folder."""
    lines = mistakes({}, config=path)
    return [line.removeprefix(f"{Path(path).parent}/") for line in lines]


def test_without_anything_the_defaults_hold() -> None:
    assert load_config({}, {}) == Config()


def test_each_source_wins_over_the_one_before(yaml_file: WriteYaml) -> None:
    path = yaml_file("out: from-file\nsteps: 1\nevery: 1\nbudget_mb: 7\n")
    variables = {"DSPROF_CONFIG": path, "DSPROF_STEPS": "2", "DSPROF_EVERY": "2"}
    config = load_config(variables, {"every": 3})
    assert config == Config(out="from-file", budget_mb=7, steps=2, every=3)


def test_settings_know_where_they_come_from(yaml_file: WriteYaml) -> None:
    path = yaml_file("# traces\nout: here\n")
    found = find_settings({"DSPROF_STEPS": "2"}, {"config": path, "every": 3})
    assert found["out"].origin == f"{path}:2:6"
    assert found["steps"].origin == "DSPROF_STEPS"
    assert found["every"].origin == "option every"
    assert found["anonymize"].origin == "default"
    assert found.keys() == FIELDS.keys()


def test_the_file_of_the_option_replaces_that_of_the_variable(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"out: {name}\n")
    config = load_config({"DSPROF_CONFIG": str(tmp_path / "one")}, {"config": tmp_path / "two"})
    assert config.out == "two"


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("yes", True), ("True", True), ("0", False), ("off", False)]
)
def test_a_variable_may_spell_true_and_false_in_many_ways(text: str, value: bool) -> None:
    assert load_config({"DSPROF_ANONYMIZE": text}, {}).anonymize is value


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load_config({"DSPROF_OUT": "", "DSPROF_CONFIG": ""}, {}) == Config()


def test_a_path_is_taken_as_text(tmp_path: Path) -> None:
    assert load_config({}, {"out": tmp_path}).out == str(tmp_path)


def test_a_tilde_is_the_home_where_no_shell_has_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load_config({"DSPROF_OUT": "~/runs"}, {}).out == "/home/somebody/runs"


def test_the_mirrors_stand_in_and_the_originals_win() -> None:
    variables = {"PYTHON_DSPROF_OUT": "far", "PYTHON_DSPROF_STEPS": "3", "DSPROF_OUT": "near"}
    config = load_config(variables, {})
    assert (config.out, config.steps) == ("near", 3)
    ours = {"DSPROF": "1", "DSPROF_OUT": "x"}
    assert mirrored(ours | {"PATH": "/bin", "DSPROFILE": "y"}) == {
        "PYTHON_DSPROF": "1",
        "PYTHON_DSPROF_OUT": "x",
    }
    assert unmirrored(mirrored(ours)) == ours


@pytest.mark.parametrize("value", ["", "0", "no", "False", "off"])
def test_these_do_not_switch_on(value: str) -> None:
    assert not is_switched_on({"DSPROF": value})
    assert is_switched_on({"DSPROF": "1"})
    assert is_switched_on({"PYTHON_DSPROF": "1"})
    assert not is_switched_on({"PYTHON_DSPROF": "1", "DSPROF": value})


def test_an_unknown_key_is_named_with_its_place(yaml_file: WriteYaml) -> None:
    assert mistakes_of_file(yaml_file("out: x\nstart_stp: 3\n")) == [
        "dsprof.yaml:2:1: unknown key 'start_stp' - did you mean 'start_step'?"
    ]


def test_unknown_variables_and_options_are_mistakes() -> None:
    assert mistakes({"DSPROF_STEP": "1", "DSPROF": "1"}, budget=3, zzz=1) == [
        "environment: unknown variable 'DSPROF_STEP' - did you mean 'DSPROF_STEPS'?",
        "options: unknown option 'budget' - did you mean 'budget_mb'?",
        "options: unknown option 'zzz'; known: config, " + ", ".join(FIELDS),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("out: no", "1:6: 'out' must be text, got no, which YAML reads as false"),
        ("out:", "1:5: 'out' must be text, got nothing, which YAML reads as null"),
        ("out: 3", "1:6: 'out' must be text, got 3"),
        ("every: 012", "1:8: 'every' must be a whole number in plain digits, got 012"),
        ("every: 1:30", "1:8: 'every' must be a whole number in plain digits, got 1:30"),
        ("every: 1e3", "1:8: 'every' must be a whole number in plain digits, got 1e3"),
        ("every: 2.0", "1:8: 'every' must be a whole number in plain digits, got 2.0"),
        (
            "start_step: yes",
            "1:13: 'start_step' must be a whole number in plain digits, "
            "got yes, which YAML reads as true",
        ),
        ("every: [1]", "1:8: 'every' must be a whole number in plain digits, got a list"),
        ("every: {a: 1}", "1:8: 'every' must be a whole number in plain digits, got a mapping"),
        ("every: 0", "1:8: 'every' must be at least 1, got 0"),
        ("steps: x", "1:8: 'steps' must be a whole number in plain digits or null, got other text"),
        ("start_step: -1", "1:13: 'start_step' must be at least 0, got -1"),
        ("metrics_port: 70000", "1:15: 'metrics_port' must be at most 65535, got 70000"),
        ("anonymize: 1", "1:12: 'anonymize' must be true or false, got 1"),
        (
            "interception: class",
            "1:15: 'interception' must be one of auto, dispatcher, native, process_group, "
            "got other text",
        ),
        (
            "anonymize: |\n  a\n  b\n",
            r"1:12: 'anonymize' must be true or false, got other text",
        ),
        ("rules: 3", "1:8: 'rules' must be a mapping"),
        ("[1, 2]", "1:1: the file must be a mapping"),
        ("? [a]\n: 1", "1:3: a key must be a name"),
        ("out: a\nout: b", "2:1: 'out' is already set in line 1"),
        ("out: [", "1:7: not YAML: expected the node content, but found '<stream end>'"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    yaml_file: WriteYaml, line: str, message: str
) -> None:
    assert mistakes_of_file(yaml_file(line)) == [f"dsprof.yaml:{message}"]


@pytest.mark.parametrize("text", ["[" * 200, "{a: " * 200, "- " * 200, "rules: " + "[" * 100])
def test_what_is_nested_too_deeply_is_refused(yaml_file: WriteYaml, text: str) -> None:
    said = "dsprof.yaml: not a configuration: nested too deeply"
    assert mistakes_of_file(yaml_file(text)) == [said]


def test_null_is_a_value_where_the_type_says_so(yaml_file: WriteYaml) -> None:
    file = yaml_file("steps: null\n")
    assert load_config({}, {"config": file}).steps is None
    file = yaml_file("steps: 3\n")
    assert load_config({"DSPROF_STEPS": "null"}, {"config": file}).steps is None


def test_quotes_make_text_of_anything(yaml_file: WriteYaml) -> None:
    assert load_config({}, {"config": yaml_file('out: "no"\n')}).out == "no"


def test_an_option_of_the_wrong_type_is_refused() -> None:
    assert mistakes({"DSPROF_EVERY": "two"}, steps=True, out=3) == [
        "DSPROF_EVERY: 'every' must be a whole number in plain digits, got other text",
        "option steps: 'steps' must be a whole number in plain digits or null, got True",
        "option out: 'out' must be text, got 3",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "end"),
    [
        ("DSPROF_BUDGET_MB", "0", "must be at least 1, got 0"),
        ("DSPROF_MODE", "allways", "window, always, got other text - did you mean 'always'?"),
        ("DSPROF_MODE", "secret", "window, always, got other text"),
    ],
)
def test_a_wrong_variable_shows_a_number_or_the_word_that_was_meant(
    variable: str, value: str, end: str
) -> None:
    [line] = mistakes({variable: value})
    assert line.endswith(end)


def test_all_mistakes_of_all_sources_come_at_once(yaml_file: WriteYaml) -> None:
    path = yaml_file("ot: x\nevery: 0\nrules: []\n")
    found = mistakes({"DSPROF_CONFIG": path, "DSPROF_X": "1"}, steps=0)
    assert len(found) == 5
    assert sum(line.startswith(path) for line in found) == 3


def test_recording_writes_to_no_store() -> None:
    [line] = mistakes({"DSPROF_OUT": "s3://user:hunter2@bucket/run"})
    assert line.startswith("DSPROF_OUT: 'out' must be a folder, got an address; ")
    assert "hunter2" not in line


def test_a_configuration_at_an_address_is_refused_without_its_password() -> None:
    address = "https://user:hunter2@host/dsprof.yaml"
    end = ": must be a local file, got an address; copy the file here"
    assert mistakes({"DSPROF_CONFIG": address}) == [f"DSPROF_CONFIG{end}"]
    assert mistakes({}, config=address) == [f"option config{end}"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "none.yaml")
    assert mistakes({"DSPROF_CONFIG": path}) == [
        f"{path}: cannot be read: No such file or directory"
    ]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert mistakes({"DSPROF_CONFIG": str(path)}) == [f"{path}: cannot be read: not a regular file"]


def test_recording_passes_the_rules_over(yaml_file: WriteYaml) -> None:
    path = yaml_file("out: x\nrules:\n  nonsense: {a: 1}\n")
    assert load_config({}, {"config": path}).out == "x"


def test_thresholds_are_read_for_the_rules_that_are_named(yaml_file: WriteYaml) -> None:
    path = yaml_file(
        "out: x\nrules:\n  low-comm-overlap:\n    overlap: 1e-1\n    ops: [broadcast, reduce]\n"
    )
    assert load_thresholds(path, SCHEMA) == {
        "low-comm-overlap": Overlap(overlap=0.1, ops=("broadcast", "reduce"))
    }


@pytest.mark.parametrize("text", ["", "rules:\n", "rules: {}\n", "out: x\n"])
def test_a_file_without_rules_changes_none(yaml_file: WriteYaml, text: str) -> None:
    assert load_thresholds(yaml_file(text), SCHEMA) == {}


def test_mistakes_in_rules_have_their_place(yaml_file: WriteYaml) -> None:
    path = yaml_file(
        "outt: x\n"
        "rules:\n"
        "  low-comm-overlp: {}\n"
        "  low-comm-overlap: {overlap: high, step: 3, limit: 1.5}\n"
        "  small-collectives: [1]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_thresholds(path, SCHEMA)
    assert str(caught.value).replace(path, "file").splitlines() == [
        "file:1:1: unknown key 'outt' - did you mean 'out'?",
        "file:3:3: unknown rule 'low-comm-overlp' - did you mean 'low-comm-overlap'?",
        "file:4:37: unknown threshold of low-comm-overlap 'step' - did you mean 'steps'?",
        "file:4:31: 'overlap' must be a finite number, got other text",
        "file:4:53: 'limit' must be a whole number in plain digits or null, got 1.5",
        "file:5:22: 'small-collectives' must be a mapping",
    ]


@pytest.mark.parametrize(
    ("threshold", "message"),
    [
        ("low-compute-share: {outside_share: 30}", "'outside_share' must be at most 1, got 30"),
        ("low-comm-overlap: {overlap: -0.5}", "'overlap' must be at least 0, got -0.5"),
        ("small-collectives: {calls_per_step: -1}", "'calls_per_step' must be at least 0, got -1"),
        ("communication-bound-step: {exposed_share: 0.3}", ""),
        ("periodic-slow-step: {slow_share: 2.5}", ""),  # longer by more than the whole
    ],
)
def test_a_share_is_no_percentage_and_nothing_is_negative(
    yaml_file: WriteYaml, threshold: str, message: str
) -> None:
    path = yaml_file(f"rules: {{{threshold}}}\n")
    schema = {rule.meta.id: type(rule.thresholds) for rule in RULES}
    if not message:
        assert load_thresholds(path, schema)
        return
    with pytest.raises(ConfigError, match=message):
        load_thresholds(path, schema)


@pytest.mark.parametrize("value", [".inf", ".nan", "1e999", "012", "1:30", "no"])
def test_a_number_that_is_none_is_refused(yaml_file: WriteYaml, value: str) -> None:
    path = yaml_file(f"rules: {{low-comm-overlap: {{overlap: {value}}}}}\n")
    with pytest.raises(ConfigError, match="must be a finite number"):
        load_thresholds(path, SCHEMA)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.binary(max_size=80)
    | st.text(alphabet="aout:rules []{}&*!\n-?#\"'%@`,<|>\t").map(str.encode)
)
@example(b'"a\\nb": 1')
@example(b"[" * 5000)
@example(b"rules: &a {low-comm-overlap: {ops: &b [*b]}}")
@example(b"out: !!python/object/apply:os.system [echo]")
@example(b"out: 2001-99-99")
@example(b"every: " + b"9" * 5000)
@example(b"a: 1\n---\nb: 2\n")
@example("out: é".encode("utf-16"))
def test_no_file_breaks_the_reader(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzz.yaml"
    path.write_bytes(data)
    for read in (lambda: load_config({}, {"config": path}), lambda: load_thresholds(path, SCHEMA)):
        try:
            read()
        except ConfigError as refusal:
            lines = str(refusal).split("\n")
        else:
            continue
        assert all(line.startswith(str(path)) for line in lines)


def test_yaml_is_imported_only_for_a_file() -> None:
    code = (
        "import sys; from dsprof.config import load_config; load_config({'DSPROF_OUT': 'x'}, {});"
        "print([name for name in ('yaml', 'difflib', 'numpy', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_hooks_of_plugins_are_a_list_in_a_file_and_commas_in_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "dsprof.yaml"
    path.write_text("hooks: [one, two]")
    assert load_config({}, {"config": path}).hooks == ("one", "two")
    assert load_config({"DSPROF_HOOKS": "one, two"}, {}).hooks == ("one", "two")
    assert load_config({}, {"hooks": ["one"]}).hooks == ("one",)
    with pytest.raises(ConfigError, match="'hooks' must be a list, each item text, got 5"):
        load_config({}, {"hooks": 5})


@pytest.mark.parametrize("value", ["0", "no", "off", "false", "False"])
def test_plugins_are_switched_off_by_a_variable_or_its_mirror(value: str) -> None:
    assert not has_plugins({"DSPROF_PLUGINS": value})
    assert not has_plugins({"PYTHON_DSPROF_PLUGINS": value})
    assert has_plugins({})
    assert has_plugins({"DSPROF_PLUGINS": "1"})
    assert load_config({"DSPROF_PLUGINS": value}, {}) == Config()


def test_where_reports_keep_columns_is_no_setting_of_a_recording() -> None:
    assert load_config({"DSPROF_CACHE": "off", "PYTHON_DSPROF_CACHE": "off"}, {}) == Config()
