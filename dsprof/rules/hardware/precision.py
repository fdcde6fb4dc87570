"""The precision in which a model computes, as far as the record tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.models import Models
from dsprof.analysis.aggregates.wire_dtypes import WireDtypes
from dsprof.analysis.summary import RunSummary
from dsprof.trace.schema import Model

PRECISIONS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
}
"""How configurations spell torch's dtypes."""


class Precision(NamedTuple):
    """A precision, and what sets it."""

    name: str  # "bf16", "fp16", "fp32", "fp8"; "" where it is not known
    key: str = ""  # of DeepSpeed's configuration, that sets it
    by_autocast: bool | None = None  # None: autocast inside of the model cannot be seen


def computed_in(run: RunSummary) -> Precision:
    """Return the precision by DeepSpeed's configuration, else by the model that is trained."""
    engines = run[Engines]
    if engines.main is not None:
        dtype = engines.main.parameter_dtype
        settings = engines.main.written | engines.main.effective
        return _configured(settings) or _of_model(_of_all(run[Models]), PRECISIONS.get(dtype, ""))
    return _of_model(_of_all(run[Models]), gathered_in(run[WireDtypes]))


def _of_all(models: Models) -> Model | None:
    """Return a model whose precision all share, as in a GAN or a cross-validation."""
    kinds = {(model.autocast, model.dtype) for model in models.models}
    return models.models[0] if len(kinds) == 1 else None


def _of_model(model: Model | None, known: str) -> Precision:
    """Return what autocast casts to, else the precision that is known, else of the parameters."""
    if model is not None and model.autocast:
        return Precision(PRECISIONS.get(model.autocast, ""), by_autocast=True)
    if known or model is None:
        return Precision(known)
    return Precision(PRECISIONS.get(model.dtype, ""))


def gathered_in(wire: WireDtypes) -> str:
    """Return the precision that most parameters are gathered in, "" if none are (DDP)."""
    parameters = wire.chosen(lambda kind: kind.purpose == "parameters")
    if not parameters:
        return ""
    most = max(parameters, key=lambda kind: (parameters[kind].nbytes, kind))
    return PRECISIONS.get(most.dtype, "")


def _configured(settings: Mapping[str, Any]) -> Precision | None:
    autocast = settings.get("torch_autocast")
    if isinstance(autocast, Mapping) and autocast.get("enabled") is True:
        dtype = str(autocast.get("dtype", "bfloat16")).removeprefix("torch.")
        name = PRECISIONS.get(dtype, dtype)
        return Precision(name, "torch_autocast", by_autocast=True)
    for key in ("bf16", "bfloat16", "fp16"):
        section = settings.get(key)
        if isinstance(section, Mapping) and section.get("enabled") is True:
            name = PRECISIONS.get(key, key)
            return Precision(name, key, by_autocast=False)
    return None
