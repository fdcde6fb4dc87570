"""`dsprof lint`: check a DeepSpeed configuration before training."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.cli.loading import local_path
from dsprof.cli.output import print_lines, tell
from dsprof.cli.versions import version_of
from dsprof.errors import DsprofError

if TYPE_CHECKING:
    from dsprof.config.deepspeed import WrittenConfig
    from dsprof.findings.finding import Finding, Table

_MOST_ROWS = 200
_KEY, _VALUE, _LINE, _IN_FORCE = "key", "value", "line", "in force"


class LintCommand:
    """Reads configuration files and says what DeepSpeed will make of them."""

    name = "lint"
    help = "check a DeepSpeed configuration before training"
    description = """\
Check DeepSpeed configuration files by the rules that also check a recorded
run: keys that are ignored, refused, without effect or in conflict, and a
precision that an accelerator of this machine lacks.

  dsprof lint ds_config.json
  dsprof lint configs/*.json --deepspeed 0.16.9

The release is the one installed here, else the newest that dsprof knows.
Exit code 0: no problems; 1: a finding that fails; 2: a file cannot be read."""

    def prepare(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "paths", nargs="+", type=local_path, metavar="FILE", help="configuration"
        )
        parser.add_argument(
            "--deepspeed",
            metavar="VERSION",
            help="DeepSpeed release to assume (default: installed here)",
        )

    def run(self, arguments: Namespace) -> int:
        """Print what is found in each file; one that cannot be read does not stop the others."""
        version = _release(arguments.deepspeed)
        codes = [_lint(path, version) for path in arguments.paths]
        return max(codes)


def _release(given: str | None) -> str:
    from dsprof.rules.knowledge.releases import release

    if given and release(given) is None:
        raise DsprofError(f"--deepspeed {given}: not a version; give one such as 0.19.8")
    return given or version_of("deepspeed") or ""


def _lint(path: Path, version: str) -> int:
    from dsprof.config.deepspeed import check_keys, read_config
    from dsprof.diagnosis.lint import lint
    from dsprof.environment import snapshot
    from dsprof.findings.finding import Status

    try:
        config = read_config(path)
        check_keys(path, config.values)
    except DsprofError as error:
        before, name, why = str(error).partition(str(path))  # /etc/passwd: is no password
        tell(f"{before}{name}{_shown(why)}")
        return 2
    findings = lint(config, version, machine=snapshot(os.environ))
    print_lines([*_report(path, version, config, findings), ""])
    return int(
        any(
            finding.status is Status.FAIL
            or (finding.status is Status.ERROR and finding.docs)  # a plugin that breaks has none
            for finding in findings
        )
    )


def _report(
    path: Path, version: str, config: WrittenConfig, found: Sequence[Finding]
) -> Iterator[str]:
    from dsprof.findings.finding import Status, by_severity
    from dsprof.findings.wording import plural, reason

    release = f"DeepSpeed {version}" if version else "newest DeepSpeed known to dsprof"
    failed = [finding for finding in found if finding.status is Status.FAIL]
    graded = f"{plural(len(failed), 'problem')}, {by_severity(failed)}"
    counted = graded if failed else "no problems"
    yield f"{_shown(path)}: {counted} ({release})"
    if not config.values:
        yield "  note  the file sets nothing: DeepSpeed uses its defaults"
    if not config.is_json:
        yield "  note  Hjson: DeepSpeed reads it, transformers and accelerate take only JSON"
    labels = {Status.FAIL: "fail", Status.INFO: "note", Status.ERROR: "broke"}
    for finding in found:
        if finding.status in labels:
            yield from _lines(labels[finding.status], finding)
        elif finding.status is Status.UNKNOWN:
            yield f"  unknown  {_shown(reason(finding.summary))} [{finding.rule}]"


def _lines(label: str, finding: Finding) -> Iterator[str]:
    yield f"  {label}  {_shown(finding.summary)} [{finding.rule}]"
    tables = [table for table in finding.evidence if table.columns[0].label == _KEY]
    for table in tables:
        yield from (f"          {row}" for row in islice(_rows(table), _MOST_ROWS))
        if (left := len(table.rows) - _MOST_ROWS) > 0:
            yield f"          and {left:,} more"
    remarks = [table for table in tables if table.columns[-1].label != _IN_FORCE]
    said = [str(row[-1]) for table in remarks for row in table.rows if row[-1]]
    if finding.action and not any(remark in finding.action for remark in said):
        yield f"        Do: {_shown(finding.action)}"


def _rows(table: Table) -> Iterator[str]:
    labels = [column.label for column in table.columns]
    for row in table.rows:
        cells = dict(zip(labels, row, strict=True))
        line = f"line {cells[_LINE]}: " if cells.get(_LINE) else ""
        in_force = labels[-1] == _IN_FORCE
        remark = "" if not row[-1] else f" (in force: {row[-1]})" if in_force else f": {row[-1]}"
        value = f" = {cells[_VALUE]}" if cells[_VALUE] else ""
        # Apart: after a key such as api_key any word is taken for a secret.
        yield _shown(f"{line}{cells[_KEY]}{value}") + _shown(remark)


def _shown(text: object) -> str:
    from dsprof.files.redaction import redact_text

    return redact_text(str(text))
