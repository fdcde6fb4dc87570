"""Records as they leave the process: no credentials; with `anonymize` no hosts, users or paths.

And nothing that is no Unicode, which JSON cannot say. docs/background/privacy.md lists what is
written.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dsprof.environment import Digest, EnvSnapshot, no_digest, unicode_text
from dsprof.files.redaction import map_text, redact_text
from dsprof.files.redaction.known_settings import NAME_KEYS, hidden_settings, written_config
from dsprof.recording.recorder.pseudonyms import Anonymizer, anonymized
from dsprof.trace.schema import EngineConfig, Group, Header, HookStatus, Note, Site, Trailer
from dsprof.trace.writing.encode import LONGEST_NAME, READ_OF_NAME


class Redaction:
    """Rewrites descriptions, and names of spans, before they are written."""

    def __init__(self, anonymizer: Anonymizer | None, digest: Digest = no_digest) -> None:
        self._anonymizer = anonymizer
        self._digest = digest

    def __call__(self, definition: Any) -> Any:
        """Return `definition` as it may be written."""
        replace = msgspec.structs.replace
        match definition:
            case str(text):
                return self._text(text)
            case EngineConfig(written=written, effective=effective):
                configs = {"written": self._engine(written), "effective": self._engine(effective)}
                return replace(definition, **configs, digests=self._digests(written))
            case Header(host=host, config=config):
                host = self._anonymizer.host(host) if self._anonymizer else host
                return replace(definition, host=host, config=self._config(config))
            case Trailer() | Note() | [HookStatus(), *_]:
                return map_text(definition, self._text)
            case Group(name=name, label=label):
                return replace(definition, name=self._name(name), label=self._name(label))
            case EnvSnapshot():
                return self._environment(definition)
            case Site(file=file, function=function):
                return replace(definition, file=self._file(file), function=self._text(function))
        return definition

    def _text(self, text: str) -> str:
        text = redact_text(unicode_text(text))
        return self._anonymizer.text(text) if self._anonymizer else text

    def _name(self, name: str) -> str:
        return self._text(name[:READ_OF_NAME])[:LONGEST_NAME]

    def _file(self, file: str) -> str:
        path = self._anonymizer.path(file) if self._anonymizer else file
        return self._text(path)

    def _environment(self, found: EnvSnapshot) -> EnvSnapshot:
        found = map_text(found, redact_text)
        return anonymized(found, self._anonymizer) if self._anonymizer else found

    def _engine(self, config: dict[str, Any]) -> Any:
        return self._config(written_config(config))

    def _digests(self, config: dict[str, Any]) -> dict[str, str]:
        made = {path: self._digest(path, repr(value)) for path, value in hidden_settings(config)}
        return {path: digest for path, digest in made.items() if digest}

    def _config(self, value: Any, path: str = "") -> Any:
        """Clean the strings of a configuration, and turn what JSON cannot say into strings."""
        if isinstance(value, dict):
            prefix = f"{path}." if path else ""
            return {
                self._text(str(key)): self._config(part, f"{prefix}{key}")
                for key, part in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._config(part, path) for part in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if self._anonymizer and path in NAME_KEYS:
            return self._anonymizer.name(str(value))
        return self._text(str(value))
