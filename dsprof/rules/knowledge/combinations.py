"""Settings of DeepSpeed that do not go together, or that do something else than they say.

Read in the sources of DeepSpeed 0.19.8; `since` is the first release of which it is known. What is
said of overlap_comm before 0.19 was read in those of 0.14.2 to 0.18.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsprof.rules.knowledge.releases import Release, release
from dsprof.rules.knowledge.values import not_taken
from dsprof.rules.rule import Severity

_OPTIMIZERS = (
    *("adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"),
    *("onebitadam", "onebitlamb", "zerooneadam"),  # known, and refused by another line
)

_SCHEDULERS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest")

Condition = Callable[[Any], bool]
"""Of the value in force; never asked of a value that is not known."""


def one_of(*values: Any) -> Condition:
    """Hold of these values; false is not zero."""
    return lambda value: any(value == one and _is_bool(value) == _is_bool(one) for one in values)


def other_than(*values: Any) -> Condition:
    """Hold of all other values."""
    return lambda value: value not in values


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_odd(value: Any) -> bool:
    return _is_number(value) and value % 2 != 0


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _may_wait(device: str) -> bool:
    """Whether waiting for the device costs anything; "" is a device that is not known."""
    return device.split(":", maxsplit=1)[0] != "cpu"


def _is_removed_optimizer(value: Any) -> bool:
    return isinstance(value, str) and value.lower() in ("onebitadam", "onebitlamb", "zerooneadam")


def _is_muon(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "muon"


def _is_lamb(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "lamb"


def _is_no_optimizer(value: Any) -> bool:
    """Whether a name is of no class; one in capitals may be of a newer torch."""
    if not isinstance(value, str) or not value or value.lower() in _OPTIMIZERS:
        return not isinstance(value, str)
    return not value[0].isupper()


def _is_untested(value: Any) -> bool:
    """Whether ZeRO does not know an optimizer: Lamb, and torch's own but for three."""
    if not isinstance(value, str) or _is_no_optimizer(value):
        return False
    name = value.lower()
    return name in ("lamb", "musgd") or (name != "" and name not in _OPTIMIZERS)


def _is_of_torch(scheduler: Any) -> bool:
    return bool(scheduler) and scheduler not in _SCHEDULERS


def _is_no_data_type(value: Any) -> bool:
    return value is not None and not_taken("data_types.param_dtype", value) != ""


def _is_no_scheduler(value: Any) -> bool:
    return not isinstance(value, str) or (value != "" and not value[0].isupper())


def _is_no_stage(value: Any) -> bool:
    return value not in (0, 1, 2, 3)


def _is_split(value: Any) -> bool:
    return _is_number(value) and value > 1


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


on, off = one_of(True), one_of(False)
_STAGE = "zero_optimization.stage"
_Z = "zero_optimization."


@dataclass(frozen=True, slots=True)
class Combination:
    """What follows where every condition of `when` holds; the first key is the one at fault."""

    when: Mapping[str, Condition]
    says: str
    do: str
    severity: Severity = Severity.NONE  # NONE: worth knowing, no fault
    since: Release = ()
    before: Release | None = None  # the first release of which it no longer holds
    config_patch: dict[str, Any] | None = None
    only_written: bool = False  # the first key must stand in the configuration
    only_before: bool = False  # of a run, another rule tells it by what was sent
    overlaps: bool = False  # what is to be done lets reductions overlap

    def concerns(self, of: Release) -> bool:
        """Whether it is so in a release."""
        return self.since <= of and (self.before is None or of < self.before)


REFUSED: tuple[Combination, ...] = (
    Combination(
        {_STAGE: _is_no_stage}, "the stage must be 0, 1, 2 or 3", "set one of them, as a number"
    ),
    Combination(
        {"fp16.enabled": on, "bf16.enabled": on}, "fp16 and bf16 exclude each other", "keep one"
    ),
    Combination(
        {"optimizer.type": _is_removed_optimizer},
        "1-bit optimizers were removed",
        "use Adam or Lamb; gradients are then sent whole",
        since=(0, 19, 7),
    ),
    Combination(
        {f"{_Z}legacy_stage1": on, _STAGE: one_of(1, 2, 3)},
        "the old stage 1 was removed in 0.5.9",
        "delete the key",
    ),
    Combination(
        {f"{_Z}cpu_offload": one_of(True, False), f"{_Z}offload_optimizer": _is_object},
        "the old name of offload_optimizer beside it",
        "delete it",
    ),
    Combination(
        {f"{_Z}cpu_offload_param": one_of(True, False), f"{_Z}offload_param": _is_object},
        "the old name of offload_param beside it",
        "delete it",
    ),
    Combination(
        {f"{_Z}allgather_bucket_size": _is_odd, _STAGE: one_of(1, 2)},
        "it must be even, although it has no effect",
        "delete the key",
    ),
    Combination(
        {
            "gradient_predivide_factor": other_than(1.0),
            f"{_Z}reduce_scatter": on,
            _STAGE: one_of(2, 3),
        },
        "needs reduce_scatter false at this stage",
        "delete gradient_predivide_factor, or set reduce_scatter to false",
    ),
    Combination(
        {"prescale_gradients": bool, f"{_Z}reduce_scatter": on, _STAGE: one_of(2, 3)},
        "needs reduce_scatter false at this stage",
        "delete prescale_gradients, or set reduce_scatter to false",
    ),
    Combination(
        {"optimizer.type": _is_muon, f"{_Z}reduce_scatter": on, _STAGE: one_of(3)},
        "Muon at stage 3 needs reduce_scatter false",
        "set zero_optimization.reduce_scatter to false",
        since=(0, 18, 9),
    ),
    Combination(
        {f"{_Z}compute_grad_norm": off, _STAGE: one_of(0, 3)},
        "is valid only at stages 1 and 2",
        "delete the key",
    ),
    Combination(
        {
            f"{_Z}compute_grad_norm": off,
            "gradient_clipping": other_than(0),
            _STAGE: one_of(1, 2),
        },
        "clipping, 1.0 where it is not set, needs the norm",
        "set gradient_clipping to 0, or delete compute_grad_norm",
    ),
    Combination(
        {f"{_Z}offload_optimizer.ratio": other_than(1.0), _STAGE: one_of(0, 1, 2)},
        "only stage 3 can offload a part of the optimizer",
        "delete ratio, or set stage to 3",
    ),
    Combination(
        {"gradient_allreduce_op": one_of("sum"), _STAGE: one_of(3)},
        "stage 3 supports only the mean",
        "delete the key",
        since=(0, 19, 6),
    ),
    Combination(
        {"bf16.bf16_master_weights_and_grads": on, _STAGE: one_of(0)},
        "needs a ZeRO stage from 1 on",
        "delete the key, or set stage",
    ),
    Combination(
        {"fp16.fp16_master_weights_and_grads": on, _STAGE: one_of(0)},
        "needs a ZeRO stage from 1 on",
        "delete the key, or set stage",
    ),
    Combination(
        {"bf16.bf16_optimizer_states": on, "bf16.bf16_master_weights_and_grads": off},
        "needs bf16_master_weights_and_grads",
        "set both or none",
    ),
    Combination(
        {
            f"{_Z}zero_quantized_gradients": on,
            f"{_Z}reduce_scatter": off,
            _STAGE: one_of(3),
        },
        "quantised gradients need reduce_scatter true",
        "delete reduce_scatter, or zero_quantized_gradients",
    ),
    *(
        Combination(
            {
                f"{precision}.{precision}_master_weights_and_grads": on,
                f"{_Z}offload_optimizer.device": one_of("none"),
                "bf16.bf16_optimizer_states": off,
                _STAGE: one_of(1, 2, 3),
            },
            "needs the optimizer on the host unless bf16_optimizer_states is true",
            "set offload_optimizer.device to cpu, or delete the key",
        )
        for precision in ("fp16", "bf16")
    ),
    Combination(
        {
            f"{_Z}compute_grad_norm": off,
            f"{_Z}offload_optimizer.device": one_of("cpu", "nvme"),
            _STAGE: one_of(1, 2),
        },
        "an optimizer on the host needs the norm",
        "delete compute_grad_norm",
    ),
    Combination(
        {f"{_Z}compute_grad_norm": off, f"{_Z}zenflow": _is_object, _STAGE: one_of(1, 2)},
        "ZenFlow needs the norm",
        "delete compute_grad_norm",
    ),
    Combination(
        {
            f"{_Z}zenflow": _is_object,
            f"{_Z}offload_optimizer.device": one_of("none"),
            _STAGE: one_of(1, 2),
        },
        "ZenFlow needs the optimizer on the host",
        "set offload_optimizer.device to cpu, or delete zenflow",
    ),
    *(
        Combination(
            {"gradient_allreduce_op": one_of("sum"), key: condition},
            f"{name} supports only the mean",
            "delete gradient_allreduce_op",
            since=(0, 19, 6),
        )
        for key, condition, name in (
            (f"{_Z}zenflow", _is_object, "ZenFlow"),
            ("compile.deepcompile", on, "DeepCompile"),
        )
    ),
    Combination(
        {"managed_gradient_accumulation": off, f"{_Z}overlap_comm": on, _STAGE: one_of(0, 1)},
        "unmanaged accumulation overlaps communication at stages 2 and 3 only",
        "set overlap_comm to false, or delete managed_gradient_accumulation",
        since=(0, 19, 4),
    ),
    Combination(
        {"managed_gradient_accumulation": off, "compile.deepcompile": on},
        "DeepCompile needs managed accumulation",
        "delete managed_gradient_accumulation",
        since=(0, 19, 4),
    ),
    Combination(
        {"optimizer.type": _is_lamb, "fp16.loss_scale": _is_positive},
        "Lamb needs a dynamic loss scale",
        "set fp16.loss_scale to 0",
    ),
    Combination(
        {"optimizer.type": _is_no_optimizer},
        "neither DeepSpeed nor torch has such an optimizer",
        "set Adam, AdamW, Lion, Lamb, Adagrad, Muon or the name of a class in torch.optim",
    ),
    Combination(
        {"scheduler.type": _is_no_scheduler},
        "neither DeepSpeed nor torch has such a scheduler",
        "set WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest or the name of a "
        "class in torch.optim.lr_scheduler",
    ),
    Combination(
        {
            "optimizer.type": _is_untested,
            "zero_allow_untested_optimizer": off,
            _STAGE: one_of(1, 2, 3),
        },
        "ZeRO was tested with Adam, AdamW, Adagrad, Lion and Muon",
        "use one of them, or set zero_allow_untested_optimizer to true",
    ),
    Combination(
        {"scheduler.type": _is_of_torch, _STAGE: one_of(1, 2, 3)},
        "torch's schedulers do not accept ZeRO's optimizer",
        f"set one of {', '.join(_SCHEDULERS)}, or pass lr_scheduler to deepspeed.initialize",
    ),
    *(
        Combination(
            {"data_types.buffer_dtype": _is_no_data_type, f"{precision}.enabled": on},
            "not a dtype",
            "set fp32, fp16 or bf16",
        )
        for precision in ("bf16", "fp16")
    ),
)
"""What stops the engine at its construction."""


_OVERLAPPED: Mapping[str, Condition] = {
    f"{_Z}overlap_comm": on,
    f"{_Z}contiguous_gradients": on,
    "engine.device": _may_wait,
    _STAGE: one_of(1, 2),
}

NEVER_OVERLAPS = Combination(
    _OVERLAPPED,
    "from 0.17.5 to 0.18.4 backward waits for the reduction of each bucket, so that hardly "
    "anything overlaps (DeepSpeed#7804)",
    "take DeepSpeed 0.19.0 or later",
    Severity.MEDIUM,
    since=(0, 17, 5),
    before=(0, 18, 5),
)


_WRITES_INTO_IT = (
    "backward writes into the bucket that is being reduced, which can silently change gradients"
)
_NOT_OVERLAPPED = {"zero_optimization": {"overlap_comm": False}}

OVERLAP_FAULTS = (
    Combination(
        _OVERLAPPED,
        f"before 0.14.3, where reductions take longer than backward, {_WRITES_INTO_IT} "
        "(DeepSpeed#5606)",
        "take DeepSpeed 0.19.0 or later, or set overlap_comm to false",
        Severity.HIGH,
        before=(0, 14, 3),
        config_patch=_NOT_OVERLAPPED,
    ),
    Combination(
        _OVERLAPPED,
        f"from 0.17.2 to 0.17.4, from the third bucket of a backward on, {_WRITES_INTO_IT} "
        "(DeepSpeed#7188)",
        "take DeepSpeed 0.19.0 or later, or set overlap_comm to false",
        Severity.HIGH,
        since=(0, 17, 2),
        before=(0, 17, 5),
        config_patch=_NOT_OVERLAPPED,
    ),
    NEVER_OVERLAPS,
    *(
        Combination(
            {**_OVERLAPPED, _STAGE: one_of(2)},
            "before 0.19.0 the gradient of a parameter larger than reduce_bucket_size may be freed "
            "while its reduction still reads it (DeepSpeed#7965, where a loss became NaN)",
            "take DeepSpeed 0.19.0 or later; before, a larger reduce_bucket_size keeps clear of it",
            since=since,
            before=before,
        )
        for since, before in (((0, 14, 3), (0, 17, 2)), ((0, 18, 5), (0, 19, 0)))
    ),
)
"""Of overlap_comm at stages 1 and 2, by release."""


def before_overlapping(version: str, stage: int | None) -> str:
    """Return what must be done before overlap_comm is set to true at a stage, "" if nothing.

    A version that is not known has no known fault.
    """
    of = release(version)
    faults = (fault for fault in OVERLAP_FAULTS if of and fault.concerns(of))
    says = next((fault.says for fault in faults if fault.when[_STAGE](stage)), "")
    return f" Take DeepSpeed 0.19.0 or later first: {says}." if says else ""


AT_ODDS: tuple[Combination, ...] = (
    *OVERLAP_FAULTS,
    Combination(
        {"optimizer.type": _is_muon, f"{_Z}reduce_scatter": on, _STAGE: one_of(1, 2)},
        "before 0.19.3 a matrix that lies in the parts of two ranks is updated by gradients of "
        "which a part was not reduced",
        "set zero_optimization.reduce_scatter to false, or take DeepSpeed 0.19.3",
        Severity.HIGH,
        before=(0, 19, 3),
        config_patch={"zero_optimization": {"reduce_scatter": False}},
    ),
    Combination(
        {
            f"{_Z}overlap_comm": on,
            f"{_Z}contiguous_gradients": off,
            f"{_Z}offload_optimizer.device": one_of("none"),  # offloading forces it on
            "engine.device": _may_wait,
            _STAGE: one_of(1, 2),
        },
        "with contiguous_gradients false the device is synchronised before each reduction, so that "
        "hardly anything overlaps",
        "set contiguous_gradients to true",
        Severity.MEDIUM,
        overlaps=True,
        config_patch={"zero_optimization": {"contiguous_gradients": True}},
    ),
    Combination(
        {
            f"{_Z}overlap_comm": on,
            f"{_Z}use_multi_rank_bucket_allreduce": off,
            f"{_Z}contiguous_gradients": on,
            f"{_Z}reduce_scatter": on,
            "engine.device": _may_wait,
            _STAGE: one_of(1, 2),
        },
        "with use_multi_rank_bucket_allreduce false the device is synchronised before each "
        "reduction, so that hardly anything overlaps",
        "set use_multi_rank_bucket_allreduce to true, or overlap_comm to false",
        Severity.MEDIUM,
        overlaps=True,
        config_patch={"zero_optimization": {"use_multi_rank_bucket_allreduce": True}},
    ),
    *(
        Combination(
            {
                f"{_Z}{key}": one_of(True, False),
                f"{_Z}contiguous_gradients": off,
                f"{_Z}offload_optimizer.device": one_of("none"),
                _STAGE: one_of(1, 2),
            },
            "has no effect while contiguous_gradients is false: whole buckets are sent by "
            "all_reduce",
            "delete the key, or set contiguous_gradients to true",
            only_written=True,
        )
        for key in ("use_multi_rank_bucket_allreduce", "reduce_scatter")
    ),
    Combination(
        {
            f"{_Z}use_multi_rank_bucket_allreduce": one_of(True, False),
            f"{_Z}reduce_scatter": off,
            f"{_Z}contiguous_gradients": on,
            _STAGE: one_of(1, 2),
        },
        "has no effect while reduce_scatter is false: whole buckets are sent by all_reduce",
        "delete the key, or set reduce_scatter to true",
        only_written=True,
    ),
    Combination(
        {f"{_Z}overlap_comm": on, "engine.kind": one_of("PipelineEngine"), _STAGE: one_of(1, 2)},
        "a pipeline engine switches it off",
        "delete the key",
        only_written=True,
    ),
    Combination(
        {"pipeline": _is_object, f"{_Z}overlap_comm": on, _STAGE: one_of(1, 2)},
        "a pipeline engine, which a PipelineModule makes, switches overlap_comm off",
        "delete overlap_comm if the model is a PipelineModule",
        only_written=True,
        only_before=True,
    ),
    Combination(
        {"tensor_parallel.autotp_size": _is_split},
        "the ranks that share a layer must be given the same data; in the first forward the engine "
        "compares it, and ends with 'Data inconsistency within the TP group' where it differs",
        "shard the data by the data-parallel rank and not by the global one: a sampler with "
        "num_replicas = world size / autotp_size and rank = global rank // autotp_size",
        only_written=True,
    ),
    Combination(
        {_STAGE: one_of(3), "engine.experts_apart": _is_positive},
        "experts lie in no leaf module: where ranks run different ones, ZeRO-3 hangs in a gather "
        "or a reduction that not all ranks come to (DeepSpeed#7461)",
        "name the class of the block in zero_optimization.leaf_module.classes, or call "
        "deepspeed.utils.set_z3_leaf_modules(model, [Block]) before deepspeed.initialize, unless "
        "every rank runs every expert",
    ),
    *(
        Combination(
            {
                f"{_Z}{part}.pin_memory": off,
                f"{_Z}{part}.device": one_of("cpu"),
                "engine.device": _may_wait,
            },
            "copies to and from pageable memory are slower, and the host waits for them",
            "set pin_memory to true where the host has memory to spare: pinned memory is never "
            "paged out",
            only_written=True,
        )
        for part in ("offload_optimizer", "offload_param")
    ),
    Combination(
        {f"{_Z}offload_optimizer.device": one_of("nvme"), _STAGE: one_of(1, 2)},
        "these stages offload to the memory of the host, whatever nvme_path says",
        'set device to "cpu", or stage to 3',
        Severity.MEDIUM,
    ),
    Combination(
        {"wall_clock_breakdown": on, "flops_profiler.enabled": off, "engine.device": _may_wait},
        "its timers wait for the device at the start and end of forward, backward and step; its "
        "time of the all-reduce says nothing with overlap_comm",
        "set it to false where speed counts",
        Severity.LOW,
        config_patch={"wall_clock_breakdown": False},
    ),
    Combination(
        {"flops_profiler.enabled": on, "engine.device": _may_wait},
        "switches wall_clock_breakdown on for all steps, not only for profile_step",
        "set it to false once the profile is there",
        Severity.LOW,
        config_patch={"flops_profiler": {"enabled": False}},
    ),
    Combination(
        {f"{_Z}reduce_scatter": on, f"{_Z}contiguous_gradients": on, _STAGE: one_of(1, 2)},
        "stages 1 and 2 reduce gradients by all_reduce, or by reduce with "
        "use_multi_rank_bucket_allreduce false; reduce-scatter comes with stage 3",
        "nothing needs to be done",
        only_written=True,
        only_before=True,
    ),
    Combination(
        {
            f"{_Z}reduce_scatter": off,
            # These three need it.
            "optimizer.type": lambda value: not _is_muon(value),
            "prescale_gradients": off,
            "gradient_predivide_factor": one_of(1),
            _STAGE: one_of(3),
        },
        "gradients are sent whole by all_reduce, and each rank keeps its share: twice the bytes",
        "delete the key: the default is true",
        Severity.MEDIUM,
        config_patch={"zero_optimization": {"reduce_scatter": True}},
        only_before=True,
    ),
    Combination(
        {f"{_Z}overlap_comm": off, "engine.device": _may_wait, _STAGE: one_of(1, 2, 3)},
        "off: nothing is computed while gradients are reduced; only stage 3 has it on by default",
        "try true, which takes a second bucket of memory",
        overlaps=True,
    ),
)
"""What DeepSpeed takes without a word."""
