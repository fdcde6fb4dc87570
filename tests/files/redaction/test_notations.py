"""dsprof.files.redaction of names and values in the notations of files, commands and programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dsprof.files.redaction import REDACTED, redact_text


@pytest.mark.parametrize("value", ["correcthorse", "Tr0ub4dor3xyz"])
@pytest.mark.parametrize(
    "text",
    [
        # YAML
        "db:\n  password: |\n    {}\n  host: node01",
        "db:\n  password: >-\n    first line\n    {}\n  host: node01",
        "- password: |\n    {}\n  host: node01",
        "passwords:\n  - {}\n  - other\nhost: node01",
        "api_keys:\n  - {}\nhost: node01",
        "hub:\n  tokens_and_secrets:\n    a: 1\n    b: {}\nhost: node01",
        "password: &anchor {}",
        "token: !!str {}",
        # INI, TOML and JSON
        "[db]\npassword =\n    {}\nhost = node01",
        'password = """\n{}\n"""\nhost = node01',
        "token = '''{}'''",
        '{{"password":\n  "{}"}}',
        '{{"token":\t"{}"}}',
        '{{"secret": {{"first": {{"a": 1}}, "second": "{}"}}, "host": "node01"}}',
        '{{"passwords": [\n  "other",\n  "{}"\n], "host": "node01"}}',
        '{{"env": "{{\\"password\\": \\"{}\\"}}"}}',
        "&quot;password&quot;:&quot;{}&quot;",
        "{{\\u0022token\\u0022: \\u0022{}\\u0022}}",
        # shells and containers
        "setenv TOKEN {}",
        "setenv HF_TOKEN '{}'",
        "set -gx HF_TOKEN {}",
        "setx HF_TOKEN {}",
        '$env:HF_TOKEN = "{}"',
        "ENV HF_TOKEN {}",
        "HF_TOKEN\t{}",
        "│ HF_TOKEN │ {} │",
        "echo {} | docker login -u me --password-stdin host",
        "docker login -u me --password-stdin <<< {}",
        "smbclient //host/share -U me%{}",
        # elements and attributes
        "<password>{}</password>",
        '<wsse:Password Type="text">{} and more</wsse:Password>',
        '<add key="password" value="{}"/>',
        "<key>apiToken</key>\n\t<string>{}</string>",
        '<input type="password" value="{}">',
        # pairs of a name and a value
        "- name: HF_TOKEN\n  value: {}\n",
        '{{"name": "HF_TOKEN", "value": "{}"}}',
        "V1EnvVar(name='HF_TOKEN', value='{}')",
        '{{"Key": "DB_PASSWORD", "Value": "{}"}}',
        "['HF_TOKEN', '{}']",
        "[(b'authorization', b'{}')]",
        # values in code
        'Config {{ password: Some("{}") }}',
        "Config(token=Secret('{}'), host='node01')",
        "SET PASSWORD FOR me = PASSWORD('{}')",
        "server.login('me', '{}')",
        "password=ab(cd){}",
        "password=[]{}",
        # headers and tables
        "X-Request-Key: one {}",
        "| password | {} |",
        "\x1b[36mtoken\x1b[0m=\x1b[35m{}\x1b[0m host=node01",
        "password:\u00a0{}",
        "password\uff1a{}",
    ],
)
def test_a_value_after_its_name_is_cut_out(text: str, value: str) -> None:
    found = redact_text(text.format(value))
    assert value not in found
    assert REDACTED in found
    assert ("node01" in found) == ("node01" in text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password=[a, b, c", ""),
        ("password=[a, b\nhost=node01", "\nhost=node01"),
        ("token=f(x)[0], host=node01", ", host=node01"),
    ],
)
def test_brackets_are_followed_to_their_end(text: str, left: str) -> None:
    assert redact_text(text) == f"{text.partition('=')[0]}={REDACTED}{left}"


_REPEATED = [
    ("Authorization: ", "\n"),
    ("", "\x1b[0m"),
    ("", "password=[\n"),
    ("", "password:\n"),
    ("password: |\n", " a\n"),
    ("", "name: TOKEN "),
    ("", "<password>"),
    ("", "echo |"),
    ("", "a:"),
    ("", "sk-"),
]

_REDACT_ALL = f"""
import resource

from dsprof.files.redaction import redact_text

resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for before, part in {_REPEATED!r}:
    redact_text(before + part * (300_000 // len(part)))
"""


def test_notations_are_looked_for_once() -> None:
    """All take 6 s of CPU time; one that is searched again from each place takes minutes."""
    subprocess.run([sys.executable, "-c", _REDACT_ALL], check=True)
