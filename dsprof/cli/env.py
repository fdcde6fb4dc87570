"""`dsprof env`: print and check the environment of this machine, before any training."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsprof.cli.loading import add_thresholds, local_path
from dsprof.cli.output import print_bytes, print_lines, terminal
from dsprof.config import PREFIX, load_config, load_thresholds, unmirrored
from dsprof.errors import ConfigError, OutputError, argument

if TYPE_CHECKING:
    from dsprof.diagnosis.model import Diagnosis
    from dsprof.environment import EnvSnapshot
    from dsprof.findings.finding import Finding
    from dsprof.trace.schema import Header

_BACKENDS = {"nvidia": "nccl", "amd": "nccl", "ascend": "hccl", "intel": "xccl"}
_DEVICES = {"nccl": "cuda", "hccl": "npu", "xccl": "xpu"}
_KNOWN = {*_DEVICES, "ccl", "gloo", "mpi"}


class EnvCommand:
    """Judges what this process would train with, by the rules of `dsprof report`."""

    name = "env"
    help = "print and check the environment of this machine"
    description = """\
Print the variables, versions, devices and limits that training would run with
here, and check them. Nothing is trained and nothing is changed.

  dsprof env                                  this machine
  torchrun ... --no-python dsprof env -o DIR  every rank writes what it has;
  dsprof report DIR                           then what differs between them

Exit code 0: no problems; 1: a finding that fails; 2: a mistake in the command.
As one of several ranks it is 0, or the launcher would stop the others."""

    def prepare(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-o",
            "--output",
            type=local_path,
            metavar="DIR",
            help="output folder (default: DSPROF_OUT)",
        )
        parser.add_argument(
            "--backend",
            metavar="NAME",
            choices=sorted(_KNOWN),
            help=f"backend of the training: {', '.join(sorted(_KNOWN))} (default: by the "
            "accelerators)",
        )
        add_thresholds(parser)

    def run(self, arguments: Namespace) -> int:
        """Print it, or write it where a folder is given; rank 0 prints in either case."""
        from dsprof.diagnosis.local_environment import diagnose_environment, environment_rules
        from dsprof.findings.finding import Status
        from dsprof.reports import render

        place = _place(os.environ)
        schema = {rule.meta.id: type(rule.thresholds) for rule in environment_rules()}
        thresholds = load_thresholds(arguments.config, schema) if arguments.config else {}
        header, found = _described(place, arguments.backend)
        diagnosis = diagnose_environment(header, found, thresholds)
        failed = [one for one in diagnosis.findings if one.status is Status.FAIL]
        folder = arguments.output or _folder(os.environ)
        if folder:
            _write(folder, header, found)
        if place.rank == 0:
            print_bytes(render(diagnosis, "text", **terminal()))
            if folder:
                print_lines(["", f"All ranks: dsprof report {argument(folder)}"])
        elif not folder:
            print_lines(_in_brief(diagnosis, failed))
        return int(bool(failed) and place.world_size == 1)


class _Place(NamedTuple):
    rank: int
    world_size: int


def _place(variables: Mapping[str, str]) -> _Place:
    """Return which rank this process would be, by what its launcher says.

    Raises:
        ConfigError: the variables name no valid rank.
    """
    from dsprof.environment.launchers import count
    from dsprof.trace.schema import LARGEST_WORLD

    pairs = [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]
    pairs.append(("PMI_RANK", "PMI_SIZE"))
    if "SLURM_STEP_ID" in variables:  # a batch script is no task, though it has these, too
        pairs.append(("SLURM_PROCID", "SLURM_NTASKS"))
    for names in pairs:
        if all(name in variables for name in names):
            rank, world = (variables[name] for name in names)
            place = _Place(count(rank), count(world))
            if 0 <= place.rank < place.world_size <= LARGEST_WORLD:
                return place
            said = f"{names[0]}={rank} and {names[1]}={world}"
            raise ConfigError(
                f"{said} are not a valid rank: unset them, or start dsprof env by a launcher"
            )
    return _Place(0, 1)


def _folder(variables: Mapping[str, str]) -> Path | None:
    named = unmirrored(variables).get(f"{PREFIX}OUT")
    return Path(named) if named else None


def _described(place: _Place, backend: str | None) -> tuple[Header, EnvSnapshot]:
    """Return who this process is and what it has, as they may be written."""
    from dsprof import environment
    from dsprof.recording.header import header_of
    from dsprof.recording.recorder.pseudonyms import Anonymizer
    from dsprof.recording.recorder.redacted_records import Redaction

    found = environment.snapshot(os.environ)
    backend = backend or _usual_backend(found)
    anonymize = load_config(os.environ, {}).anonymize
    header = header_of(
        place.rank,
        place.world_size,
        backend=backend,
        device=_DEVICES.get(backend, "cpu"),
        anonymized=anonymize,
    )
    disclose = Redaction(Anonymizer(header.run_key) if anonymize else None)
    return disclose(header), disclose(found)


def _usual_backend(found: EnvSnapshot) -> str:
    """Return what torch would use here: on CPUs, and in a torch without CUDA or ROCm, gloo."""
    if found.versions.get("torch", "").endswith("+cpu"):
        return "gloo"
    return next((_BACKENDS[one.vendor] for one in found.accelerators), "gloo")


def _write(folder: Path, header: Header, found: EnvSnapshot) -> None:
    from dsprof.trace.writing.writer import write_environment

    try:
        write_environment(folder, header, found)
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder}: {error.strerror}; choose another with -o DIR"
        ) from None


def _in_brief(diagnosis: Diagnosis, failed: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each problem, so that those of many ranks can be read together."""
    run = diagnosis.run
    texts = [f"[{one.severity.value.upper()}] {one.summary}" for one in failed]
    for text in texts or ["no problems found"]:
        yield f"rank {run.ranks[0]} on {run.hosts[0]}: {text}"
