"""The command line: one file a sub-command. It never imports torch, deepspeed or the session."""

from __future__ import annotations

from dsprof.cli.base import Command, Parser
from dsprof.cli.bench import BenchCommand
from dsprof.cli.build import BuildCommand
from dsprof.cli.capture import CaptureCommand
from dsprof.cli.check import CheckCommand
from dsprof.cli.compare import CompareCommand
from dsprof.cli.completion import CompletionCommand
from dsprof.cli.doctor import DoctorCommand
from dsprof.cli.env import EnvCommand
from dsprof.cli.export import ExportCommand
from dsprof.cli.hang import HangCommand
from dsprof.cli.lint import LintCommand
from dsprof.cli.metrics import MetricsCommand
from dsprof.cli.report import ReportCommand
from dsprof.cli.rules import ExplainCommand, RulesCommand
from dsprof.cli.run import RunCommand
from dsprof.cli.serve import ServeCommand
from dsprof.cli.watch import WatchCommand

__all__ = ["COMMANDS", "Command", "Parser"]

COMMANDS: tuple[Command, ...] = (
    RunCommand(),
    ReportCommand(),
    ServeCommand(),
    WatchCommand(),
    MetricsCommand(),
    HangCommand(),
    CaptureCommand(),
    LintCommand(),
    CompareCommand(),
    CheckCommand(),
    ExportCommand(),
    RulesCommand(),
    ExplainCommand(),
    DoctorCommand(),
    EnvCommand(),
    BenchCommand(),
    BuildCommand(),
    CompletionCommand(),
)
