"""What leaves the process: no credentials; with `anonymize` no hosts, users and paths either."""

from __future__ import annotations

from typing import Any

import msgspec

from dsprof.anonymize import Anonymizer, anonymized
from dsprof.environment import REDACTED, EnvSnapshot, is_secret
from dsprof.trace.format import EngineConfig, Header, NoteArgs, SiteArgs


class Disclosure:
    """Rewrites descriptions before they are written."""

    def __init__(self, anonymizer: Anonymizer | None) -> None:
        self._anonymizer = anonymizer

    def __call__(self, definition: Any) -> Any:
        """Return `definition` as it may be written."""
        if isinstance(definition, EngineConfig):
            written, effective = (
                self._config(definition.written),
                self._config(definition.effective),
            )
            return msgspec.structs.replace(definition, written=written, effective=effective)
        if self._anonymizer is None:
            return definition
        match definition:
            case Header():
                host = self._anonymizer.host(definition.host)
                return msgspec.structs.replace(
                    definition, host=host, config=self._config(definition.config)
                )
            case EnvSnapshot():
                return anonymized(definition, self._anonymizer)
            case SiteArgs():
                file = self._anonymizer.path(definition.file)
                return msgspec.structs.replace(definition, file=file)
            case NoteArgs():
                text = self._anonymizer.text(definition.text)
                return msgspec.structs.replace(definition, text=text)
        return definition

    def _config(self, value: Any, name: str = "") -> Any:
        """Clean the strings of a configuration, and turn what JSON cannot say into strings."""
        if isinstance(value, dict):
            return {str(key): self._config(part, str(key)) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._config(part, name) for part in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        text = str(value)
        if is_secret(name, text):
            return REDACTED
        return self._anonymizer.text(text) if self._anonymizer else text
