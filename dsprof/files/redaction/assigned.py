"""Values that follow the name of a credential, in the notations of programs and their files.

A name and its value are joined by a sign (`password: X`, `--token X`, `"key", "X"`), by an element
(`<password>X</password>`), by a command (`setenv TOKEN X`), or are two values themselves
(`name: TOKEN`, `value: X`). A value may be quoted, in brackets, or a block of indented lines.
Every function takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

REDACTED = "<redacted>"

_SECRET_NAME = (
    r"token(?!s|iz|[_-]?(?:dim|ids|count|len"
    r"|size|limit|budget|type|emb|per|drop|mix|dispatch|parallel|ind|idx|pos|mask|weight|shift|loss"
    r"|tree|group|bucket|pad|rate|merg|choice|rout|wise))"
    r"|secret|passw|passphrase|passcode|credential|mnemonic|(?<!by)pwd"
    r"|(?:api|access|account|private|shared|signing|encryption|auth|ssh|master|license|experiment)"
    r"[_-]?key(?!s?[_-]?(?:cache|size))"
    r"|(?:^|[^a-z0-9])(?:(?<!sort_)(?<!cache_)(?<!rng_)(?<!barrier_)key"
    r"(?![_-](?:value|states|padding|size|cache|layer|dim|proj|pos))|keys|apikey|jwt|auth"
    r"|authorization|(?<!grad_)(?<!ward_)(?<!sion_)pass(?![_-](?:name|idx?|manager|through|config))"
    r"|pw|psw|pat|sas|sig|signature"
    r"|dsn|cookie|otp|pin(?!_?(?:memory|device|thread))|bearer|netrc|kubeconfig)(?:[^a-z0-9]|$)"
    r"|(?:ssh|user|db|root|admin|login|mail|smtp|http|proxy|key|store)pass(?:[^a-z0-9]|$)"
)
"""Parts of names of credentials, in lower case with words apart. Counts are called `tokens`."""

_ENTITY = r"&(?:quot|apos|#3[49]);|\\{1,3}u002[27]"  # of HTML and of JSON
QUOTE = rf"(?:\\{{0,3}}[\"']|{_ENTITY})"
QUOTED = "|".join(
    rf"{mark * 3}[\s\S]*?(?:{mark * 3}|\Z)"
    rf"|{mark}(?:[^{mark}\\\n]|\\.)*{mark}(?!{mark})"
    rf"|\\{{1,3}}{mark}(?:[^{mark}\\\n]|\\[^{mark}\n])*\\{{1,3}}{mark}"
    rf"|\\{{0,3}}{mark}[^{mark}\n]*"  # which the end of the text cut off
    for mark in "\"'"
)

_BLANK = r"[^\S\r\n]*(?:\x1b\[[\d;]{0,20}m[^\S\r\n]*){0,3}"  # in logs with colours
_WORD = r"[\w.-]{1,80}"

PAIRED = {
    # name: TOKEN, value: X
    rf"(?i)(?<![\w.-])(?:name|key|type){QUOTE}?\s?[:=]\s?{QUOTE}?(?P<paired>{_WORD}){QUOTE}?"
    rf"[\s,]{{1,200}}{QUOTE}?value{QUOTE}?{_BLANK}(?P<sign>[:=]){_BLANK}": ":=",
    # <password>X</password>, <key>password</key><string>X</string>
    rf"<(?:key>)?(?:[\w-]{{1,80}}:)?(?P<element>{_WORD})(?:\s[^<>]{{0,200}}|</key>\s{{0,200}}<\w{{1,20}})?>"
    r"(?=(?P<content>[^<]{1,4096})</)": "<",
    # setenv TOKEN X, and tables of variables
    rf"(?<![\w.-])(?:(?i:setenv|setx|set[ ]-\w{{1,3}})|ENV)[ \t]+(?P<variable>{_WORD})[ \t]+"
    r"(?=\S)(?!(?:is|was|not|has|must|to|for)\b)": " \t",
    r"(?<![\w.-])(?P<variable>(?=[A-Z\d]{1,80}_)[A-Z][A-Z\d_]{1,80})(?:[ ]*[|│]|\t|[ ]{2})[ \t]*"
    r"(?=[^\s|│])": "|│\t ",
}
_SIGNS = " \t\"'&\\=:>%\uff1a\uff1d"
ASSIGNED = {
    # name=value, "name": "value", --name value, ("name", "value")
    rf"(?<![\w.-])(?:(?P<option>--?{_WORD})(?:[ \t]+(?!-)|{QUOTE}, *(?={QUOTE}))"
    rf"|(?P<name>{_WORD})(?P<quoted>{QUOTE})?\]?{_BLANK}(?P<sign>[=-]>|:=|==|[=:\uff1a\uff1d]|%3[ADad]){_BLANK})"
    rf"|\(b?{QUOTE}(?P<first>{_WORD}){QUOTE}, *(?=b?{QUOTE})"
    rf"|\[b?{QUOTE}(?P<only>{_WORD}){QUOTE}, *(?=b?{QUOTE}[^\"'\n]{{1,1024}}{QUOTE}\])": _SIGNS,
}
"""What precedes a value, with its name in one of these groups, and signs of which each has one.

What is paired is an element, a command or a pair; what is assigned has a sign or an option.
"""
_NAMES = ("paired", "element", "variable", "option", "name", "first", "only")

_VALUE = (
    r"(?!<redacted>|(?i:true|false|none|null)(?![\w-])|\"\"(?!\")|''(?!')|(?:\[\]|\{\}|\(\))(?![^\s,;)\]}]))"
    r"(?:[&!][\w!./-]{1,80}[ \t]+)?"  # anchors and tags of YAML
    rf"(?:[A-Za-z]{{0,2}}(?:{QUOTED})|(?:{_ENTITY})[^\s&\\]*"
    r"|<[^<>\s]*>|(?P<bare>[^\s,;&\"'<>(){}\[\]\x1b]+|(?=[\[({])))"
)
_REST = r"[^\s,;&\"'<>(){}\[\]\x1b]*"
_BEFORE_BLOCK = r"(?:[&!][\w!./-]{1,80}[ \t]*)?(?:[|>][-+\d]{0,2})?[ \t]*(?:#[^\n]*)?\r?\n"
_MARGIN = r"(?P<blank>[ \t]*)(?P<items>(?:-[ \t]+)*)"

_ORDINARY = frozenset(("key", "keys", "auth", "pass", "pat", "pin", "signature"))
"""Words that precede a colon in sentences, too."""
_OF_DICTS = frozenset(("auth", "pass", "pin"))
"""Those of them that are secrets as quoted names."""

_FILE = r"\.(?:ya?ml|jsonl?|py|cpp|txt|log|toml|cfg|conf|ini|sh|gz|zip|md|html|pt|bin)$"
_HARMLESS = (  # names, and values that such a name may have
    (r"^(?!.*(?:pass|pwd|pw|pin|otp|code|secret))", r"\d{1,5}(?:\.\d{1,9})?[a-z%]{0,2}"),
    (r"_token_id$", r"\d{1,7}"),
    (r"token$", r"</?[a-z]\w{0,20}>|<\|\w{1,30}\|>|\[[A-Z]{2,8}\]"),
    (r"(?:file|path|dir|folder)$", r"(?:~|\.\.?)?/[\w./~+-]*"),
    # keys of torch's store and of state dicts
    (r"^(?:store_)?key$", r"[a-z_]{0,40}\d{0,3}(?:[./:]{1,2}[a-z_]{0,40}\d{0,3}){1,40}"),
    (r"pass$", r"forward|backward|(?:pre|post)_grad|joint"),
    (r"^sig$", r"SIG[A-Z\d]{2,8}"),
)
_KEYS_OF_DATA = (
    r"(?i)^(?!.*(?:api|access|private|secret|auth|account|ssh|sign|encrypt|token)).*keys"
)
"""Names, such as `missing_keys`, of lists that messages of errors have in lines of their own."""
_BEFORE_SYNTAX = r"(?i)expect(?:ed|ing)[ ]$"  # unexpected token: '}'
_LONGEST_WORD = 12


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a credential, however the name is spelt."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return any(re.search(_SECRET_NAME, spelt.lower()) for spelt in (words, name))


def without_values(text: str, forms: Mapping[str, str]) -> str:
    """Return `text` without values that it gives to a credential in one of these forms."""
    for form, signs in forms.items():
        if not any(sign in text for sign in signs):
            continue
        parts, end = list[str](), 0
        for found in re.finditer(form, text):
            if found.start() < end or not _announces_secret(found):
                continue
            value_end = _end_of_value(found)
            if value_end > found.end() and not _is_harmless(found, value_end):
                parts += [text[end : found.end()], REDACTED]
                end = value_end
        if parts:
            text = "".join([*parts, text[end:]])
    return text


def _announces_secret(found: re.Match[str]) -> bool:
    groups, name = found.groupdict(), _name(found)
    is_quoted = groups.get("quoted") or groups.get("first") or groups.get("only")
    ordinary = _ORDINARY - _OF_DICTS if is_quoted else _ORDINARY
    in_sentence = groups.get("sign") == ":" or not (groups.get("sign") or groups.get("option"))
    is_word = in_sentence and name.lower() in ordinary
    is_error = name.endswith(("Error", "Exception", "Warning"))  # KeyError: 'weight'
    is_place = groups.get("sign") == ":" and re.search(_FILE, name)  # key.yaml:1:1
    is_none = is_word or is_error or is_place or name.lower() == "pwd"  # which a pattern knows
    before = found.string[max(0, found.start() - _LONGEST_WORD) : found.start()]
    return is_secret_name(name) and not is_none and not re.search(_BEFORE_SYNTAX, before)


def _name(found: re.Match[str]) -> str:
    groups = found.groupdict()
    return next(groups[kind] for kind in _NAMES if groups.get(kind))


def _is_harmless(found: re.Match[str], value_end: int) -> bool:
    value = re.sub(rf"^{QUOTE}|{QUOTE}$", "", found.string[found.end() : value_end])
    name = _name(found).lower()
    return any(
        re.search(names, name) and re.fullmatch(values, value) for names, values in _HARMLESS
    )


def _end_of_value(found: re.Match[str]) -> int:
    """Return where the value ends that begins where `found` ends; there if there is none."""
    text, start = found.string, found.end()
    groups = found.groupdict()
    if groups.get("content"):
        return found.end("content")
    opened = re.compile(_BEFORE_BLOCK).match(text, start)
    if opened and groups.get("sign") in (":", "=") and not re.search(_KEYS_OF_DATA, _name(found)):
        return _end_of_block(text, found.start(), opened.end()) or start
    value = re.compile(_VALUE).match(text, start)  # may be as long as the text
    if not value:
        return start
    end = value.end()
    while value["bare"] is not None and text[end : end + 1] in ("[", "(", "{"):
        closed = _closing_brackets(text).get(end)
        if not closed:
            return _end_of_line(text, end)
        end = closed
        if rest := re.compile(_REST).match(text, end):
            end = rest.end()
    return end


def _end_of_block(text: str, name: int, start: int) -> int:
    """Return the end of the lines from `start` that are indented deeper than that of `name`, or 0.

    Items of a list may have the indentation of the name.
    """
    margin = len(_margin(text, text.rfind("\n", 0, name) + 1)[0])
    end = 0
    while start < len(text):
        line_end, found = _end_of_line(text, start), _margin(text, start)
        indentation = len(found["blank"]) + (1 if found["items"] else 0)
        has_text = found.end() < line_end
        if has_text and indentation <= margin:
            break
        end = line_end if has_text else end
        start = line_end + 1
    return end


def _margin(text: str, start: int) -> re.Match[str]:
    found = re.compile(_MARGIN).match(text, start)
    assert found  # it may be empty
    return found


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


@lru_cache(maxsize=1)
def _closing_brackets(text: str) -> dict[int, int]:
    """Return where the bracket at each place is closed, of those that are."""
    opened, closed = list[int](), dict[int, int]()
    for mark in re.finditer(r"(?<!\x1b)[\[\](){}]", text):
        if mark[0] in "[({":
            opened.append(mark.start())
        elif opened:
            closed[opened.pop()] = mark.end()
    return closed
