"""dsprof.files.redaction of sentences and command lines: what is cut out, what stays readable."""

from __future__ import annotations

import base64
import os
import random
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.files.redaction import REDACTED, redact_text
from tests.factories.secrets import texts

WORD = "correcthorse"  # a password that looks like a word


@pytest.mark.parametrize(
    "text",
    [
        "the password is {}",
        "password was {}.",
        "PASSWORD IS {}",
        "use password {} here",
        'with password "{}"',
        "authentication failed for user admin with password {}",
        "the password for admin is {}",
        "password of admin: {}",
        "passphrase {}",
        "pwd {}",
        "secret is {}",
        "changed password to {}",
        "user: admin\npass: {}\n",
        "curl -u admin:{} https://x",
        "curl [-u admin:{}] https://x",
        "sshpass -p {} ssh host",
        "mysql -u root -p'{}' db",
        "redis-cli -h x -a {} ping",
        "the pa\u017fsword is {}",  # \u017f equals s but for its case
    ],
)
def test_a_password_that_is_a_word_is_cut_out(text: str) -> None:
    found = redact_text(text.format(WORD))
    assert WORD not in found
    assert REDACTED in found


def test_a_text_is_searched_only_for_what_its_words_announce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = list[str]()
    monkeypatch.setattr(re, "sub", lambda pattern, _, text: tried.append(pattern) or text)
    redact_text.__wrapped__("/opt/app/train.py")
    assert len(tried) == 1  # for keys by their form


@pytest.mark.parametrize(
    "part",
    [
        "password ",
        "password for a ",
        "token a1",
        "mysql ",
        "-uu",
        "ldap ",
        "pin ",
        "basic ",
        "aB3-",
    ],
)
def test_words_are_looked_for_once(part: str) -> None:
    """What was searched again from each place would take hours."""
    redact_text(part * 50_000)


@pytest.mark.parametrize(
    "text", ["basic {}", "scheme BASIC {}, denied", "[basic  {}]", "'basic {}'"]
)
@pytest.mark.parametrize("user", ["alice:opensesame", "bob:zzz", "svc-train:correct horse"])
def test_users_and_passwords_in_base64_are_cut_out_however_basic_is_spelt(
    text: str, user: str
) -> None:
    encoded = base64.b64encode(user.encode()).decode()
    assert redact_text(text.format(encoded)) == text.format(REDACTED)


@pytest.mark.parametrize("text", ["refused: OAuth {}", "oauth {}", "Basic YWxpY2U6eno=.{}"])
def test_what_follows_a_scheme_of_http_is_cut_out_to_its_end(text: str) -> None:
    assert "tail4token" not in redact_text(text.format("first1part-tail4token"))


@pytest.mark.parametrize("length", [32, 43, 64])
@pytest.mark.parametrize(
    "text", ["request with {} failed", "x={}", "('{}')", "id {}.", "<{}>", "error {}: denied"]
)
def test_random_tokens_without_a_word_before_them_are_cut_out(text: str, length: int) -> None:
    letters = string.ascii_letters + string.digits + "-_"
    tokens = ["".join(random.Random(seed).choices(letters, k=length)) for seed in range(200)]
    left = [token for token in tokens if token in redact_text(text.format(token))]
    assert len(left) <= 10, left  # which by chance look like words


@pytest.mark.parametrize(
    "text",
    [
        *("the PIN is {}", "PIN: {}", "PIN {}", "your pin was {}", "pin code is {}", "pin = '{}'"),
        *("PIN for alice is {}", "wrong PIN ({})", "PIN '{}' rejected", "PIN changed to {}"),
        *("OTP: {}", "otp is {}", "one-time code {}", "verification code is {}", "MFA code {}"),
        *("user pin:{}", "2FA code is {}", "smartcard pin set to {}", "security code: {}"),
    ],
)
def test_a_pin_in_a_sentence_is_cut_out(text: str) -> None:
    assert "482193" not in redact_text(text.format("482193"))


@pytest.mark.parametrize("place", ["key.yaml:1:1", "/srv/token.json:12", "auth.py:3"])
def test_the_place_of_a_mistake_stays(place: str) -> None:
    assert redact_text(f"{place}: 'every' must be a number") == f"{place}: 'every' must be a number"


def test_errors_of_the_command_line_and_of_configuration_echo_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "key.yaml"
    file.write_text(f"every: {WORD}\nanonymize: {WORD}\n")
    config = tmp_path / "ds.json"
    config.write_text(f'{{"note": 1, "password={WORD}": 1, "password={WORD}": 2}}')
    variables = {**os.environ, "DSPROF_STEPS": WORD, "DSPROF_CONFIG": str(file)}
    said = ""
    for arguments in (
        ["doctor"],
        ["report", f"https://me:{WORD}@host/x"],
        ["report", f"--password={WORD}", "x"],
        ["lint", str(config)],
    ):
        command = [sys.executable, "-m", "dsprof", *arguments]
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, cwd=tmp_path
        )
        said += done.stdout + done.stderr
    assert WORD not in said
    assert f"{file}:1:8: 'every' must be a whole number" in said
    assert "DSPROF_STEPS: 'steps' must be" in said


def test_credentials_of_each_kind_are_cut_out_of_a_line() -> None:
    lines = ("{}", "[rank0]: RuntimeError: cannot open {}: no such file", "x = load('{}')")
    leaked = {
        one.kind
        for one in texts()
        if any(one.secret in redact_text(line.format(one.text)) for line in lines)
    }
    assert leaked == set()
