"""dsprof.files.redaction of sentences and command lines: what is cut out, what stays readable."""

from __future__ import annotations

import base64
import os
import random
import string
import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.files.redaction import REDACTED, redact_text
from tests.files.redaction.harmless import HARMLESS

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
        "sshpass -p {} ssh host",
        "mysql -u root -p'{}' db",
        "redis-cli -h x -a {} ping",
    ],
)
def test_a_password_that_is_a_word_is_cut_out(text: str) -> None:
    found = redact_text(text.format(WORD))
    assert WORD not in found
    assert REDACTED in found


@pytest.mark.parametrize(
    "text",
    [
        "token embedding 4096 x 4096",
        "tokens per second 12345",
        "4096 tokens per batch",
        "token ids of shape [4, 2048]",
        "token 128256 out of range",
        "the next token is 42",
        "tokenizer loaded from /data/llama",
        "token is not in the vocabulary",
        "pad token is None",
        "eos token id: 2",
        "the token embedding layer",
        "token dropping enabled",
        "expected token ',' got 'x'",
        "unexpected token '<' in JSON",
        "token type ids",
        "secret sauce",
        "password authentication failed for user",
        "password required",
        "no password given",
        "the password is wrong",
        "password is incorrect",
        "password is required",
        "password must not be empty",
        "invalid password",
        "Password prompt",
        "password-less ssh is needed",
        "passwordless ssh",
        "permission denied (publickey,password).",
        "pwd is not set",
        "pwd /home/x",
        "api key is missing",
        "api key not found",
        "api key required",
        "API key verification failed",
        "access key not configured",
        "secret not found",
        "secret is missing",
        "secret manager unavailable",
        "KeyError: 'token'",
        "key 'bias' missing in state_dict",
        'Missing key(s) in state_dict: "lm_head.weight"',
        "Unexpected key(s) in state_dict",
        "NCCL INFO Channel 00/02 : 0 1",
        "NCCL WARN Call to connect returned Connection refused",
        "mkdir -p checkpoints/run1",
        "mkdir -p out",
        "docker run -p 8080:80 image",
        "ssh -p 2222 host",
        "ssh -p 22 node01",
        "srun -p gpu train.py",
        "sbatch -p debug job.sh",
        "nvidia-smi -p 1",
        "pdsh -w node[01-04] hostname",
        "ps -u root",
        "python -u train.py",
        "python -u -m torch.distributed.run",
        "torchrun --nproc-per-node 8 train.py --tokenizer llama --max-tokens 4096",
        "--token-dropping",
        "--max_tokens 512 --token_dim 4096",
        "use_auth: False",
        "squeue -u alice",
        "sort -u file.txt",
        "top -u alice",
        "git push -u origin main",
        "cp -a src dst",
        "ls -a",
        "rsync -a x y",
        "a key is needed",
        "pass is not supported",
        "forward pass 3 of 4",
        "backward pass took 3 ms",
        "pass 2",
        "key: 4",
        "the signature is wrong: f(int)",
        "auth: none",
        "collective auth token count=8",
        "token count 8",
        "num_tokens=4096",
        "tokens=4096",
        "token_embedding.weight",
        "secret: False",
        "pass: 3",
        "password file /etc/passwd",
        "passwd file missing",
        "cannot open /etc/passwd",
        "read password from file",
        "password for user alice",
        "enter password for alice",
        "password length 8",
        "password was not accepted",
        "token bucket algorithm",
        "token budget exceeded",
        "token limit 4096",
        "token expired",
        "token has expired",
        "token refresh failed",
        "access token expired",
        "access token could not be refreshed",
        "bearer token missing",
        "token classification head",
        "token mixing 3",
        "token parallelism degree 4",
        "CLS token added",
        "token 5 routed to expert 3",
        "Secrets are mounted in /var/run",
        "key value cache",
        "API keys page",
        "credentials not found",
        "credential helper osxkeychain",
        "Unable to locate credentials",
        "mnemonic names",
        "the mask token is [MASK]",
        "token shift 1",
        "token-level loss 2.31",
        "per-token latency 12.5ms",
        "token loss 2.31",
        "token throughput 12345.6",
        "token 12/100",
        "secret santa",
    ],
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    assert redact_text(text) == text


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


@pytest.mark.parametrize("text", HARMLESS)
def test_names_messages_and_commands_of_runs_stay(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "text", ["basic {}", "scheme BASIC {}, denied", "[basic  {}]", "'basic {}'"]
)
@pytest.mark.parametrize("user", ["alice:opensesame", "bob:zzz", "svc-train:correct horse"])
def test_users_and_passwords_in_base64_are_cut_out_however_basic_is_spelt(
    text: str, user: str
) -> None:
    encoded = base64.b64encode(user.encode()).decode()
    assert redact_text(text.format(encoded)) == text.format(REDACTED)


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
