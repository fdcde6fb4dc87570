"""Text as it may be written: without credentials, whoever wrote it.

Two ways, for two kinds of text. A setting is written if it is on a list of known ones and its value
has the shape that such values have (`plain_value`); of others the name is written. Free text, such
as the message of an exception, loses what is known to be a credential by its form or by the word
before it (`redact_text`). docs/background/privacy.md says what is written and what is not.

Patterns are compiled at first use, by re: an import pays nothing for them.
"""

from __future__ import annotations

import binascii
import dataclasses
import re
from collections.abc import Callable
from functools import lru_cache
from operator import is_
from types import NoneType
from typing import Any

from dsprof.files.redaction.assigned import (
    ASSIGNED,
    PAIRED,
    QUOTE,
    QUOTED,
    REDACTED,
    is_secret_name,
    without_values,
)

__all__ = (
    "REDACTED",
    "RedactedWords",
    "is_secret_name",
    "map_text",
    "plain_value",
    "redact_text",
    "written_name",
)

_PASSWORD = r"(?:passw(?:or)?[dt]|passphrase|passcode|(?<![\w$])pwd)(?![\w-])"
_FOLLOWING = (
    r"(?:is|was|are|be|been|has|have|had|must|may|can|cannot|could|should|would|will|does|did|do"
    r"|not|no|none|null|true|false|and|or|but|if|when|as|than|for|of|to|from|in|on|at|by|with"
    r"|without|via|per|it|this|that|the|an?|your?|again|here|too|only|still|now|please|auth\w*"
    r"|access\w*|argument|based|callback|change|checks?|contains|database|empty|entry|expires"
    r"|failures?|fields?|files?|given|hash|hashes|incorrect|input|invalid|length|line|login|manager"
    r"|mismatch|missing|option|policy|prompt|protection|reset|rotation|rules?|set|storage|store"
    r"|strength|string|to[ ]be|unknown|unset|use|valid|value|variable|verification|weak|wrong"
    r"|correct|[a-z]+(?:ed|ing|[ai]ble))(?![\w-])"
)
"""Words that follow "password" in sentences."""

_TOKEN = (
    r"\b(?:token|secret|credentials?|(?:api|access|auth|secret|private|license|signing)[ _-]?key)"
    r"(?![\w-])"
)
_LETTER_AND_DIGIT = r"(?=[A-Za-z_.~+/-]{0,99}\d)(?=[\d_.~+/-]{0,99}[A-Za-z])"
_MIXED_CASE = r"(?=[\da-z_.~+/-]{0,99}[A-Z])(?=[\dA-Z_.~+/-]{0,99}[a-z])"
_QUANTITY = r"\d[\d.,x]*[a-z/%]{0,9}(?![\w-])"
_PROGRAMS = "|".join(  # and the option by which they take a password
    rf"(?:{programs})\b[^\n;|]{{0,200}}?[\s\"']{option}"
    for programs, option in (
        (r"sshpass|mysql\w*|mariadb\w*|mongo\w*|(?:docker|podman|registry|az|oc)[ ]login", "-p"),
        ("redis-cli", "-a"),
        (r"ldap\w+", "-w"),
        ("plink|pscp|psftp", "-pw"),
        ("openssl", "-pass(?:in|out)?[ ]+pass:"),
    )
)
_AFTER_OPTION = rf"(?:[ =]+|(?:{QUOTE}), *)?(?:{QUOTE})?"
_IS = r"(?:[ ]+(?:is|was|set[ ]to|changed[ ]to|to)|[ ]*(?::|=|->))[ ]+"

_IS_NUMBER = (
    r"(?:[ ](?:for|of)[ ][\w.@-]{1,64})?(?:[ ]*[:=]|[ ]+(?:is|was|set[ ]to|changed[ ]to))"
    r"[ ]*[\"'(]?"
)

_FORMS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # A private key, to its end or to that of the text.
    (
        ("private key",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[\s\S]*?(?:-----END [A-Z0-9 ]*-----|\Z)",
        REDACTED,
    ),
    # User and password in an address.
    (("@",), r"(?<=[:/]/)[^\s@:/\"'<>]{0,256}:[^\s\"'<>]{0,256}@(?=[\w\[/])", f"{REDACTED}@"),
    (("@",), r"(?<=://)(?!<redacted>)[^/\s\"'<>]{1,256}@(?=[\w\[])", f"{REDACTED}@"),
    (
        ("@",),
        r"(?<![\w.:@+-])[\w.+-]+:(?!\d{1,2}(?:,\d{1,2})*@)[^\s:/@\"'<>]+@(?=[A-Za-z\d][\w-]*[.:][\w-]|localhost\b)",
        f"{REDACTED}@",
    ),
    # Headers of HTTP, to the end of the line or of the string that they are in.
    (
        ("authorization", "cookie", "x-"),
        rf"(?i)(\b(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{{1,40}}(?:key|token))"
        rf"(?:{QUOTE})?\s*[:=]\s*(?:{QUOTE})?)(?!<redacted>)[^\s\"'\\][^\r\n\"'\\]*"
        r"(?:(?<==)\"[^\r\n\"]*\"[^\r\n\"'\\]*)*",
        rf"\1{REDACTED}",
    ),
    (
        ("bearer", "negotiate", "geniekey"),
        r"(?i)\b(bearer|negotiate|geniekey)(\s+)(?!<redacted>)[\w.~+/=-]{6,}",
        rf"\1\2{REDACTED}",
    ),
    (
        ("oauth",),
        r"(?i)\b(oauth)(\s+)(?=[a-z_.~+/-]{0,99}\d)[\w.~+/-]{12,}={0,2}",
        rf"\1\2{REDACTED}",
    ),
    (
        ("basic",),
        r"\b(Basic)(\s+)(?=[A-Za-z+/]*[\d=+/A-Z])[A-Za-z0-9+/]{8,}[\w.~+/=-]*",
        rf"\1\2{REDACTED}",
    ),
    (
        ("basic",),
        r"\b(basic)(\s+)(?=[A-Za-z+/]*\d)(?=[\da-z+/]*[A-Z])[A-Za-z0-9+/]{12,}={0,2}",
        rf"\1\2{REDACTED}",
    ),
    # name=value, "name": "value", --name value, Name: value.
    (
        ("passw", "passphrase", "mnemonic", "secret", " key"),
        r"(?i)(\b(?:passw(?:or)?d|passphrase|mnemonic|secret"
        r"|(?:api|access|account|private|shared)[ ]key(?:[ ]id)?)\s*:(?:[^\S\r\n]+|\r?\n))"
        r"(?!<redacted>|[|>][-+\d]{0,2}[ \t]*\n|[\w.:]{0,40}[\[({]"
        r"|(?:true|false|none|null)(?![\w-]))[^\s,;&\"'<>]+(?:[ ][^\s,;&\"'<>]+)*",
        rf"\1{REDACTED}",
    ),
    (  # not $PWD, a folder
        ("pwd",),
        r"(?i)(\bpwd\s*[=:]\s*)(?![/~<\s])[^\s,;&\"'<>]+",
        rf"\1{REDACTED}",
    ),
    (
        ("?", "&", ";"),
        r"(?i)([?&;](?:key|code|auth|sv|se|sp|sr|skoid)=)(?!<redacted>)[^\s&\"'<>]+",
        rf"\1{REDACTED}",
    ),
    # By form: the keys of clouds, code hosts, model hubs, payment, chat and mail.
    (
        ("",),
        r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|AGPA|AROA|AIPA|ANPA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
        r"|\bya29\.[\w-]{8,}|(?<!\w)1//0[\w-]{24,}|\bGOCSPX-[\w-]{8,}"
        r"|\b(?:hf|gh[oprsu]|github_pat|wandb_v\d|npm|dckr_pat|shp(?:at|ca|pa|ss)|whsec|lin_api"
        r"|r8|sbp|pscale_(?:tkn|pw|oauth)|figd|pnu|rdme|glsa|tfp|nvapi|ntn)_[\w-]{12,}"
        r"|\b(?:glpat|gldt|glrt|glptt|nvapi|sk|pk|rk|pypi|dop_v1|doo_v1|xox[abeoprs]|xapp|pat|sq0[a-z]{3}"
        r"|PMAK|NRAK|NRJS|hvs|hvb|sntrys|tskey)"
        r"[-_.](?=[\w-]{0,99}\d)[\w.-]{12,}"
        r"|\b(?:sk|pk|rk)_(?:live|test)_\w{8,}|\bdapi[0-9a-f]{16,}|\bSG\.[\w-]{8,}\.[\w-]{8,}"
        r"|\bLTAI[A-Za-z0-9]{12,}|(?<!\d)\d{8,10}:AA[\w-]{20,}|\bAGE-SECRET-KEY-\w{8,}"
        r"|\b[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}|\bATATT3[\w=-]{16,}|\bAKCp\w{16,}"
        r"|\beyJ[\w-]{8,}(?:\.[\w-]*){0,4}"
        r"|\b(?:fw|gsk|rpa|tgp_v\d|secret_[a-z]{2,8})_(?=\w{0,99}\d)(?=\w{0,99}[A-Z])\w{16,}"
        r"|\bapi_org_[A-Za-z]{20,}|\blsv2_[a-z]{2}_[0-9a-f]{16,}\w*|\b(?:local-|key-|SK)[0-9a-f]{32,}"
        r"|\b(?:pplx|xai|xkeysib)-(?=[\w-]{0,99}\d)[\w-]{16,}|\.atlasv1\.[\w-]{16,}"
        r"|(?<![\w~])[\w~]{3}\dQ~[\w~.-]{24,}|\bMUNGE:[\w+/=]+"
        r"|\$(?:apr1|[156y]|2[aby])\$[\w./$]{16,}|(?<=:thin:)[^\s@]{1,256}(?=@)"
        r"|\bgl(?:cbt|ft|oas|imt|soat|agent)-(?=[\w-]{0,99}\d)[\w-]{16,}|\bsk-[a-z]{40,}"
        r"|\b(?:csk|pul|fc)-(?=[a-z]{0,99}\d)[\da-z]{32,}|\b(?:esecret|bkua|hcaik)_\w{20,}"
        r"|\bdp\.[a-z]{2,5}\.(?:[\da-z_]{1,35}\.)?[A-Za-z\d]{40,}|\bdose[0-9a-f]{16,}|\bSCT\d{1,7}T\w{20,}"
        r"|\ba[ks]-(?=[A-Za-z]{0,21}\d)(?=[\da-z]{0,21}[A-Z])[A-Za-z\d]{22}\b"
        r"|\b(?:ms|sdk|HRKU)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
        r"|\bpat[A-Za-z\d]{14}\.[0-9a-f]{64}\b|\bv2\.(?:public|local)\.[\w-]{40,}"
        r"|\bv1\.0-[0-9a-f]{16,}-[0-9a-f]{32,}|\bsecret_\w{1,40}_[0-9a-f]{32}\.\w{16,}"
        r"|\bopen\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/[\w-]{16,}"
        r"|\bhooks\.slack\.com/(?:services|workflows|triggers)/[\w/]{16,}"
        r"|\bdiscord(?:app)?\.com/api/webhooks/[\w/-]{16,}",
        REDACTED,
    ),
    # Command lines: curl -u user:password, sshpass -p password; not values[-count:].
    (
        (":", "%"),
        r"((?<![\w-])(?:(?<![\[)])-[A-Za-z]{0,5}[uU]|-u(?=[ =])|--(?:proxy-)?user)"
        rf"{_AFTER_OPTION}"
        r"[A-Za-z_][\w.@+\\-]{0,63}[:%])(?![/<])[^\s,\"']+",
        rf"\1{REDACTED}",
    ),
    (
        ("sshpass", "mysql", "mariadb", "mongo", " login", "redis-cli", "ldap")
        + ("plink", "pscp", "psftp", "openssl"),
        rf"(?i)(\b(?:{_PROGRAMS}){_AFTER_OPTION})(?!<redacted>)[^\s,\"'=]+",
        rf"\1{REDACTED}",
    ),
    (
        ("login(", "auth("),
        rf"(\b(?:login|[Aa]uth)\((?:{QUOTED}), *)(?:{QUOTED})",
        rf"\1{REDACTED}",
    ),
    (
        ("echo",),
        r"(\becho[ ]+)[^\n|]{1,200}(?=\|[^\n]{0,200}"
        r"(?:--?password-stdin|--with-token|sudo -S|chpasswd))",
        rf"\1{REDACTED} ",
    ),
    (
        ("--password-stdin",),
        rf"(--password-stdin[ ]*<<<[ ]*)(?:{QUOTED}|\S+)",
        rf"\1{REDACTED}",
    ),
    # Sentences: the password (for admin) is X, password X, invalid token "X".
    (
        ("passw", "passphrase", "passcode", "pwd", "secret", "identified"),
        rf"(?i)((?:{_PASSWORD}(?:[ ](?:for|of)(?:[ ][\w.@'\"-]{{1,64}}){{1,2}}?)?|\bsecret){_IS}"
        rf"|{_PASSWORD}[ ]+(?:[|│][ ]*)?|identified[ ]by[ ]+)(?!<redacted>|[=:|>-]|{_FOLLOWING})"
        rf"(?:{QUOTED}|`[^`\n]*`|(?:(?<!pwd[ ])[^\s,;&\"'<>()\[\]]+|[A-Za-z\d][^\s,;&\"'<>()\[\]]*)"
        rf"(?:\((?:{QUOTED})\)?)?)",
        rf"\1{REDACTED}",
    ),
    (
        ("pin", "otp", "code"),
        rf"(?i)(\b(?:pin|otp|(?:one[ -]time|verification|security|2fa|mfa|pin)[ ]code){_IS_NUMBER})"
        r"\d{4,12}(?![\w.-])",
        rf"\1{REDACTED}",
    ),
    (
        ("pin", "otp", "code"),
        r"(\b(?:PIN|OTP|(?:2FA|MFA|one[ -]time|verification) code)[ ]+[\"'(]?)\d{4,12}(?![\w.-])",
        rf"\1{REDACTED}",
    ),
    (
        ("pass:",),
        rf"(?im)^([ \t-]*pass:[ ]+)(?![\d<\[{{]|{_FOLLOWING})\S+[ \t]*$",
        rf"\1{REDACTED}",
    ),
    (
        ("token", "secret", "credential", "key"),
        rf"(?i)({_TOKEN}(?:[ ](?:provided|given|used|supplied|value))?"
        rf"(?:{_IS}[\"'`(]?|[ ]+[\"'`(])){_LETTER_AND_DIGIT}(?!{_QUANTITY})"
        r"[\w.~+-][\w.~+/-]{5,}={0,2}(?![\w=])",
        rf"\1{REDACTED}",
    ),
    (
        ("token", "secret", "credential", "key"),
        rf"((?i:{_TOKEN})[ ]+){_LETTER_AND_DIGIT}{_MIXED_CASE}"
        r"[\w.~+-][\w.~+/-]{7,}={0,2}(?![\w=])",
        rf"\1{REDACTED}",
    ),
)
"""Words of which each match has one, in lower case; the pattern; what replaces it. In this order.

A text without the words costs no search, and no compilation, which takes 10 ms for all.
"""

_BASIC = r"(?i)(\bbasic\s+)([A-Za-z0-9+/_-]{8,}={0,2})(?![\w+/=])"
_HEX = r"(?<![\w.-])(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{32,}(?![\w-])"
_BEFORE_REVISION = (
    r"(?i)(?:\b(?:commit|rev(?:ision)?|HEAD|checkout|git[_ ]version|sha(?:1|256))\W{1,4}|\w@)$"
)
_LONGEST_WORD = 20
_LONG_RUN = (
    r"(?<![\w/.~+-])[A-Za-z0-9_-]{32,}={0,2}(?![\w/+-]|\.\w)"
    r"|(?<=/)[A-Za-z0-9+]{40,}(?![\w.-])|(?<![\w/.:+-])[A-Za-z0-9+/]{40,}={0,2}(?![\w/.-])"
)
_SHORTEST_RANDOM = 32
_FEW_SEPARATORS = 4
_LONGEST_RUN = 2.5  # mean, of letters of a case or digits; 1.8 of random ones, above 3 of names
_MOST_IN_WORDS = 0.4  # part of the token

_RANDOM = (
    r"(?<![\w/.-])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{16,}"
    r"|(?<![\w/.+-])(?=[A-Za-z+]*\d)(?=[\d+]*[A-Za-z])[A-Za-z0-9+]{32,}"
    r"|(?<![\w/.+-])[A-Za-z0-9+/]{12,}={1,2}$"
    r"|^(?=\S*\d)(?=\S*[a-z])(?=\S*[A-Z])[\w-]{32,}$"
)
_UUID = r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"

_NUMBER = r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|\d+(?:\.\d{1,9})?(?:[eE][+-]?\d{1,3})?)[A-Za-z%]{0,3}"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}"
_DEVICE = rf"(?:GPU-|MIG-GPU-|MIG-){_UUID[2:-2]}(?:/\d+/\d+)?"
_BETWEEN = r" ?[,:;|=^+>()#\[\]{}] ?"
_ITEM = rf"|{_DEVICE}|{_NUMBER}|{_NAME}|\*"
_PATH = r"(?:~|\.{1,2})?/[\w.+@~%=, #*()\[\]-]*(?:/[\w.+@~%=, #*()\[\]-]*)*"
_WHOLE = rf"{_PATH}(?::(?:{_PATH})?)*|[0-9a-fA-F:.]{{2,45}}(?:%\w+)?"  # of addresses, the latter
_LONGEST_VALUE = 16_384  # lists of libraries, of nodes


def plain_value(value: str) -> bool:
    """Whether `value` is one that a known setting may have, and nothing that is a credential.

    Such are numbers with a unit, names, devices, addresses and paths, and lists of them.
    """
    if len(value) > _LONGEST_VALUE or not _has_known_shape(" ".join(value.split())):
        return False
    return redact_text(value) == value and not re.search(_RANDOM, re.sub(_UUID, "", value))


def _has_known_shape(value: str) -> bool:
    if re.fullmatch(_WHOLE, value):
        return True
    items = re.split(_BETWEEN, value)
    names_secret = any(is_secret_name(item) for item in items[:-1])  # the next one
    return not names_secret and all(re.fullmatch(_ITEM, item) for item in items)


def written_name(name: str) -> str:
    """Return the name of an unknown setting if it is a name at all, not a credential itself."""
    is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", name)
    return name if is_name and plain_value(name) else REDACTED


@lru_cache(maxsize=4096)  # a page says the same of many ranks
def redact_text(text: str) -> str:
    """Return free text without what looks like a credential."""
    lower, is_ascii = text.lower(), text.isascii()  # other letters may equal these but for case
    text = without_values(text, PAIRED)
    for words, pattern, replacement in _FORMS:
        if not is_ascii or any(word in lower for word in words):
            text = re.sub(pattern, replacement, text)
    if not is_ascii or "basic" in lower:
        text = re.sub(_BASIC, _without_basic, text)
    if len(text) >= _SHORTEST_RANDOM:
        text = re.sub(_HEX, _without_hex, text)
        text = re.sub(_LONG_RUN, _without_random, text)
    return without_values(text, ASSIGNED)


class RedactedWords(dict[str, str]):
    """Words without what looks like a credential: each is looked at once, however many they are."""

    def __missing__(self, word: str) -> str:
        self[word] = redacted = redact_text(word)
        return redacted


def _without_basic(found: re.Match[str]) -> str:
    """Replace what is a user and a password in base64, however "basic" is spelt."""
    try:
        decoded = binascii.a2b_base64(f"{found[2]}==").decode()
    except ValueError:
        return found[0]
    return f"{found[1]}{REDACTED}" if ":" in decoded and decoded.isprintable() else found[0]


def _without_hex(found: re.Match[str]) -> str:
    """Replace hexadecimal digits that are no revision of git and no digest of an image."""
    before = found.string[max(0, found.start() - _LONGEST_WORD) : found.start()]
    return found[0] if re.search(_BEFORE_REVISION, before) else REDACTED


def _without_random(found: re.Match[str]) -> str:
    """Replace letters and digits that mix as no words or numbers do."""
    token = re.sub(_UUID, "", found[0])
    runs = [len(run) for run in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", token)]
    in_words = sum(len(word) for word in re.findall(r"[a-z]{5,}|[A-Z]{5,}", token))
    separators = len(re.findall("[_-]", token))
    kinds = all(re.search(kind, token) for kind in ("[a-z]", "[A-Z]", r"\d"))
    is_random = sum(runs) < _LONGEST_RUN * len(runs) and in_words < _MOST_IN_WORDS * sum(runs)
    is_name = separators > max(_FEW_SEPARATORS, len(token) / 12)
    return REDACTED if kinds and is_random and not is_name else found[0]


_TEXTLESS = frozenset({int, float, bool, NoneType})


def map_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with `change` applied to every string in it.

    It takes what descriptions and diagnoses are made of: structs of msgspec, frozen dataclasses,
    tuples, lists and dicts. What does not change is the same object.
    """
    if isinstance(value, str):
        if type(value) is not str:  # a member of an enum
            return value
        new = change(value)
        return value if new == value else new  # the same object: what holds it is not copied
    if isinstance(value, dict):
        return {map_text(key, change): map_text(part, change) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return _map_items(value, change)
    fields = getattr(value, "__struct_fields__", getattr(value, "__dataclass_fields__", ()))
    changed = {}
    for name in fields:
        part = getattr(value, name)
        if type(part) not in _TEXTLESS and (new := map_text(part, change)) is not part:
            changed[name] = new
    if not changed:
        return value
    import msgspec  # late: doctor says when it is broken

    replace = msgspec.structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
    return replace(value, **changed)


def _map_items(items: Any, change: Callable[[str], str]) -> Any:
    if set(map(type, items)) <= _TEXTLESS:  # columns of figures are long
        return items
    parts = [map_text(part, change) for part in items]
    if all(map(is_, parts, items)):
        return items
    return type(items)(*parts) if hasattr(items, "_fields") else type(items)(parts)
