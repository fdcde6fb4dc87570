"""Looks for phrases that readers stumble over: `python -m tests.words`, part of `make lint`.

Prose of the docs, templates, tables of sentences; strings, docstrings and comments of modules. Code
in backticks or fences is not checked.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

PROSE = ("*.md", "docs/**/*.md", "reports/**/*.j2")
MODULES = (
    *("dsprof/**/*.py", "hooks/**/*.py", "reports/**/*.py", "dsprof_autostart.py"),
    *("benchmarks/**/*.py", "examples/**/*.py"),
)
TABLES = ("dsprof/rules/knowledge/**/*.csv", "dsprof/findings/glossary.csv")
SAY = {
    r"\balone\b": "only",
    r"\b(are|is) of (no|a) known family\b": "not recognised",
    r"\bat odds\b": "conflicting",
    r"\bbuffers of (communication|gradients)\b": "communication buffers, gradient buffers",
    r"\bbusiness of\b": "is covered by",
    r"\bcalling sites?\b": "call site",
    r"\bcarried to where\b": "copied back to",
    r"\bcomes back that\b": "is periodic",
    r"\bcould not (be )?tell|\bnothing is known\b": "unknown",
    r"^(counted|framed) is\b|\bwhat is there\b|\bto one day\b": "(a plain sentence)",
    r"\bcut off for\b": "truncated",
    r"\b\d+ of \d+ cannot be\b|\bcannot be: the\b": "invalid",
    r"\bdearest\b": "most expensive",
    r"\bdecides for all\b": "limits all",
    r"\bended badly\b": "crashed, was killed",
    r"\b(?<!segmentation.)(?<!protection.)(?<!page.)faults?\b": "problem, defect (an injected "
    "fault, a hardware fault)",
    r"\bfor ever\b": "forever",
    r"\bfor want of\b": "without, too few",
    r"\bfrom one step on\b": "at one moment",
    r"(?<![-\w/.`\[(])gathers\b(?![\w(.\]])": "all-gathers",
    r"\bgo(es)? together\b": "is consistent",
    r"\bgroups? of one\b": "single-rank group",
    r"\bgrave(r|st)?\b": "severe, higher, highest",
    r"\bhad to be tried again\b": "were retried",
    r"\bholds? the (step|ranks?|callers?)\b": "blocks",
    r"\bintent missed\b": "(say which key has no effect)",
    r"\bis in the way\b": "harms",
    r"\bkeeps? communication from\b": "disables",
    r"\b(lets?|letting) (\w+ ){0,3}go\b": "release, reshard",
    r"\bmean nothing\b": "are ignored",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bneed be done\b": "no change is needed",
    r"\bno longer told\b|\b(is|are|was|were|been|be) told\b|\bnot told\b": "unknown, not recorded",
    r"\bnobody('s|\b)": "no rank, unknown",
    r"\bnow and then\b": "occasionally",
    r"\bnumber formats?\b": "dtype, precision",
    r"\bof one kind\b": "comparable",
    r"\bone by one\b": "separately, each",
    r"\bor graver\b": "or higher",
    r"\b(ms|[KMG]i?B|calls|times|line|cell) a "
    r"(step|rank|call|host|node|collective|micro-step)\b": "per step, per rank",
    r"\bout of (python's )?sight\b": "not seen",
    r"\bpassed over\b": "skipped",
    r"\bquickest\b": "fastest",
    r"\bruns? along\b": "is on",
    r"\bseen waited for\b": "no wait was recorded",
    r"\bset side by side\b|\bare tied\b|\btied (to|by|only)\b": "aligned",
    r"\bstands? (?!out\b)|\bstood\b|\bstanding (?!out\b)": "is, remains; stuck",
    r"\btells? (of|it)\b|\bt(ell|ells|old) (\w+ )?apart\b": "shows, distinguishes",
    r"\bthat (they|it) wait(s)? for is\b|\brank that the others wait for\b": "straggler",
    r"\bworst moment\b": "minimum",
    r"\btimes of an accelerator\b": "device times",
    r"\bunder way\b": "in flight",
    r"\bundisturbed\b": "isolated",
    r"\bwhat it says\b": "summary",
    r"\bwho does so\b|\bwho do so\b": "(say who does what)",
    r"\bwithout a word\b": "without a message",
}
"""Phrases, and what to say instead."""
_RIDDLE = re.compile(r"(?:Of|By|In so|(?:So|As) (?:many|long|much))\b")
"""How the docstring of a constant must not begin: it needs a subject."""
_PHRASES = {re.compile(p.replace(" ", r"\s+"), re.IGNORECASE): say for p, say in SAY.items()}


class Phrase(NamedTuple):
    """A phrase that was found."""

    path: str
    line: int
    text: str
    better: str


def _prose(text: str) -> str:
    """Blank what is not prose: code, addresses, templates' own language."""
    for pattern in (r"^```.*?^```", r"`[^`\n]*`", r"\]\([^)\s]*\)", r"\{[{%#].*?[}%#]\}"):
        text = re.sub(pattern, _blank, text, flags=re.MULTILINE | re.DOTALL)
    return text


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings, docstrings and comments of a module, each with its line."""
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, _prose(node.value) if id(node) in bare else node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _prose(token.string)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _strings(text)
    else:
        yield 1, _prose(text)


def _of_constants(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of constants, each with its line."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for constant, after in pairwise(body if isinstance(body, list) else ()):
            match constant, after:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                    yield after.lineno, text


def phrases_in(path: Path) -> Iterator[Phrase]:
    """Yield every phrase of one file."""
    if path.suffix == ".py":
        for line, text in _of_constants(path.read_text(encoding="utf-8")):
            if begin := _RIDDLE.match(text):
                yield Phrase(path.name, line, begin[0], "(begin with a subject)")
    for line, text in _texts(path):
        for phrase, better in _PHRASES.items():
            for hit in phrase.finditer(text):
                at = line + text.count("\n", 0, hit.start())
                yield Phrase(path.name, at, " ".join(hit[0].split()), better)


def found() -> Iterator[Phrase]:
    """Yield every phrase in the files that are checked."""
    for pattern in (*PROSE, *MODULES, *TABLES):
        for path in sorted(ROOT.glob(pattern)):
            name = str(path.relative_to(ROOT))
            yield from (one._replace(path=name) for one in phrases_in(path))


def main() -> None:
    """Name each phrase with its place; exit with 1 if there is any."""
    phrases = list(found())
    for one in phrases:
        print(f"{one.path}:{one.line}: say “{one.better}”, not “{one.text}”")
    sys.exit(1 if phrases else 0)


if __name__ == "__main__":
    main()
