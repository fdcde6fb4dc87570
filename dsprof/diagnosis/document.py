"""A diagnosis as JSON, written and read back."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dsprof.diagnosis.model import SCHEMA_VERSION, Diagnosis
from dsprof.diagnosis.parts.environment import EnvironmentInfo
from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.files.json_documents import json_document
from dsprof.files.redaction.known_settings import written_config, written_variables

_LONG_NUMBER = re.compile(rb"\d{19}")


def to_json(diagnosis: Diagnosis) -> bytes:
    """Encode a diagnosis as indented JSON."""
    return json_document(diagnosis)


def from_json(data: bytes, where: str) -> Diagnosis:
    """Decode what `to_json` wrote; `where` names the source in messages.

    Raises:
        TraceError: the data is no diagnosis of this schema version.
    """
    try:
        diagnosis = msgspec.json.decode(data, type=Diagnosis)
    except UNDECODABLE as error:
        raise TraceError(f"{where}: not a dsprof diagnosis: {error}") from None
    if diagnosis.schema_version != SCHEMA_VERSION:
        raise TraceError(
            f"{where}: diagnosis of schema version {diagnosis.schema_version}, this dsprof reads "
            f"{SCHEMA_VERSION}; render it with the dsprof that wrote it"
        )
    if _LONG_NUMBER.search(data) and not _fits(msgspec.to_builtins(diagnosis)):
        raise TraceError(f"{where}: not a dsprof diagnosis: a number is beyond 64 bits")
    return msgspec.structs.replace(diagnosis, environment=_written(diagnosis.environment))


def _written(found: EnvironmentInfo) -> EnvironmentInfo:
    """Hide settings that an earlier dsprof wrote, as recording hides them."""
    replace = msgspec.structs.replace
    return replace(
        found,
        variables=written_variables(found.variables),
        effective=written_variables(found.effective),
        files={name: written_variables(values) for name, values in found.files.items()},
        written_config=written_config(found.written_config),
        effective_config=written_config(found.effective_config),
        engines=[
            replace(
                one, written=written_config(one.written), effective=written_config(one.effective)
            )
            for one in found.engines
        ],
    )


def _fits(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_fits, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**63
