"""What leaves the process: no credentials; with `anonymize` no hosts, users and paths either.

And nothing that is no Unicode, which JSON cannot say.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dsprof.anonymize import Anonymizer, anonymized
from dsprof.environment import REDACTED, EnvSnapshot, is_secret, unicode_text
from dsprof.trace.format import EngineConfig, Header, HookStatus, NoteArgs, SiteArgs, Trailer


class Disclosure:
    """Rewrites descriptions before they are written."""

    def __init__(self, anonymizer: Anonymizer | None) -> None:
        self._anonymizer = anonymizer

    def __call__(self, definition: Any) -> Any:
        """Return `definition` as it may be written."""
        replace = msgspec.structs.replace
        match definition:
            case EngineConfig(written=written, effective=effective):
                configs = {"written": self._config(written), "effective": self._config(effective)}
                return replace(definition, **configs)
            case Header(host=host, config=config):
                host = self._anonymizer.host(host) if self._anonymizer else host
                return replace(definition, host=host, config=self._config(config))
            case Trailer(failed_hooks=failed):
                told = {name: self._text(why) for name, why in failed.items()}
                return replace(definition, failed_hooks=told)
            case [HookStatus(), *_]:
                return [replace(status, why=self._text(status.why)) for status in definition]
            case NoteArgs(text=text):
                return replace(definition, text=self._text(text))
            case EnvSnapshot() if self._anonymizer:
                return anonymized(definition, self._anonymizer)
            case SiteArgs(file=file) if self._anonymizer:
                return replace(definition, file=self._anonymizer.path(file))
        return definition

    def _text(self, text: str) -> str:
        text = unicode_text(text)
        return self._anonymizer.text(text) if self._anonymizer else text

    def _config(self, value: Any, name: str = "") -> Any:
        """Clean the strings of a configuration, and turn what JSON cannot say into strings."""
        if isinstance(value, dict):
            return {str(key): self._config(part, str(key)) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._config(part, name) for part in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        text = str(value)
        return REDACTED if is_secret(name, text) else self._text(text)
