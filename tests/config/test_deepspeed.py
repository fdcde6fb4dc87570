from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsprof.config.deepspeed import check_keys, read_config
from dsprof.errors import ConfigError

TEXT = """{
  "train_batch_size": 8,
  "zero_optimization": {"stage": 2,
    "offload_optimizer": {
      "device": "cpu"
    }
  },
  "a list": [{"stage": 1}, ["x", {"y": 2}]],
  "braces in text": "{ \\"no\\": [1] }",
  "after": {"all": 1}
}
"""
LINES = {
    "train_batch_size": 2,
    "zero_optimization": 3,
    "zero_optimization.stage": 3,
    "zero_optimization.offload_optimizer": 4,
    "zero_optimization.offload_optimizer.device": 5,
    "a list": 8,
    "braces in text": 9,
    "after": 10,
    "after.all": 10,
}


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "ds_config.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_values_and_the_lines_of_their_keys(tmp_path):
    config = read_config(written(tmp_path, TEXT))
    assert (config.values, config.lines, config.is_json) == (json.loads(TEXT), LINES, True)


def test_carriage_returns_and_a_byte_order_mark(tmp_path):
    config = read_config(written(tmp_path, "\ufeff" + TEXT.replace("\n", "\r\n")))
    assert (config.values, config.lines) == (json.loads(TEXT), LINES)


def test_comments_and_trailing_commas_are_taken_as_deepspeed_takes_them(tmp_path):
    text = '{\n  # one\n  "stage": [1, 2,], // two\n  /* "three": {\n */ "four": {"five": 5,},\n}'
    config = read_config(written(tmp_path, text))
    assert config.values == {"stage": [1, 2], "four": {"five": 5}}
    assert config.lines == {"stage": 3, "four": 5, "four.five": 5}
    assert not config.is_json


def test_a_comment_that_reads_like_another_file_is_a_comment(tmp_path):
    text = '/*\ndeepspeed: a guide\n  distributed_type: any\n*/\n{"train_batch_size": 8}'
    assert read_config(written(tmp_path, text)).values == {"train_batch_size": 8}


def test_a_new_line_replaces_a_comma_as_deepspeed_takes_it(tmp_path):
    text = '{"a": {\n"b": 1 // one\n"c": [1\n2, "x"\n]\n}\n"d": true\n/* \n */ "e"\n: {}}'
    config = read_config(written(tmp_path, text))
    assert config.values == {"a": {"b": 1, "c": [1, 2, "x"]}, "d": True, "e": {}}
    assert not config.is_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1 "b": 2}', "Expecting ',' delimiter"),
        ('{"stage": ${stage}}', "line 1 column 11"),
        ('{\n "a": CONFIG\n}', "line 2"),
        ('# one\n{ // two\n "a": [1,\n 2],\n "b": [False]\n}', "Expecting value: line 5"),
        ('{"a": 1, // one\n "b": ', "Expecting value: line 2"),
        ('{"a": 1' + "0" * 100_000 + "}", "line 1: a number of 100,001 digits; write at most 300"),
        ('{ // one\n "a": -1' + "0" * 5000 + "}", "line 2: a number of 5,001 digits"),
        ("[1]", "does not look like a DeepSpeed configuration"),
        ("", "does not look like a DeepSpeed configuration"),
        ("// one\n", "does not look like a DeepSpeed configuration"),
        ("distributed_type: DEEPSPEED\n", "a configuration of accelerate"),
        ("deepspeed_config:\n  deepspeed_config_file: zero3.json\n", "its deepspeed_config_file"),
        ("model: a\ndeepspeed: zero3.json # one\n", 'configuration that "deepspeed" names'),
        ("deepspeed: # zero3.json\nmodel: a\n", "does not look like a DeepSpeed configuration"),
        ("num-layers: 24\n", "does not look like a DeepSpeed configuration"),
        ("{'train_batch_size': 8}", "cannot be read as JSON: Expecting property name"),
        (b"\xff\xfe{}", "UTF-8"),
        ('{"a": 1,\n "a": 2}', "line 2: a is set a second time (first on line 1)"),
        ('{"z": {"a": 1,\n "a": 2}}', "accelerate and transformers take the last"),
        ("[" * 100_000, "does not look like a DeepSpeed configuration"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested more than 100 deep"),
        ('{"a": "\\ud800"}', "JSON: '\\ud800' is half of a character; delete it"),
        ('{"a": "' + "\\" * 9, "cannot be read as JSON"),
        ('{"a": "' + '\\"' * 400_000, "cannot be read as JSON"),
        ("/* " * 300_000, "does not look like a DeepSpeed configuration"),
        ('{"a": 1} /* never closed', "cannot be read as JSON"),
        ('{"a": 1}' + " " * (1 << 20), "larger than 1,024 KiB"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "run `git lfs pull`"),
    ],
)
def test_what_is_no_configuration_is_said_in_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError) as error:
        read_config(written(tmp_path, text))
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "x", "scripts": {"test": "jest"}}, "train_micro_batch_size_per_gpu"),
        ({"hidden_size": 4096, "torch_dtype": "bfloat16"}, "zero_optimization"),
        ({"deepspeed": {"train_batch_size": 8}, "lr": 1}, '"deepspeed" looks like one'),
        (
            {"deepspeed": {"train_batch_size": 8}, "gradient_accumulation_steps": 8},
            '"deepspeed" looks like one',
        ),
    ],
)
def test_the_file_of_another_program_is_told_in_one_line(values, said):
    with pytest.raises(ConfigError, match="does not look like a DeepSpeed config") as error:
        check_keys(Path("package.json"), values)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_the_arguments_of_a_trainer_name_the_configuration():
    """Some of their names are keys of DeepSpeed, too."""
    values = {"gradient_accumulation_steps": 8, "bf16": True, "deepspeed": "zero2.json"}
    with pytest.raises(ConfigError, match='give the configuration that "deepspeed" names'):
        check_keys(Path("sft.json"), values)


@pytest.mark.parametrize(
    "values", [{}, {"fp16": {}}, {"zero_optimisation": {}}, {"amp": 1, "x": 2}]
)
def test_one_key_or_a_misspelt_one_makes_it_a_configuration(values):
    check_keys(Path("ds_config.json"), values)


def test_files_that_cannot_be_opened(tmp_path):
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_config(path)


def test_a_key_that_is_repeated_in_another_section_is_no_repetition(tmp_path):
    config = read_config(written(tmp_path, '{"fp16": {"enabled": 1}, "bf16": {"enabled": 0}}'))
    assert list(config.lines) == ["fp16", "fp16.enabled", "bf16", "bf16.enabled"]


def test_a_dot_in_a_key_makes_it_no_repetition(tmp_path):
    config = read_config(written(tmp_path, '{"a": {"b": 1}, "a.b": 2, "": {"c": 3}, "c": 4}'))
    assert config.values == {"a": {"b": 1}, "a.b": 2, "": {"c": 3}, "c": 4}
