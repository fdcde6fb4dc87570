"""Settings of DeepSpeed that cancel each other, or that do something else than they say.

Read in the sources of DeepSpeed 0.19.8; what is said of overlap_comm before 0.19, in those of
0.14.2 to 0.18.9.
"""

from __future__ import annotations

from dsprof.findings.finding import Severity
from dsprof.rules.knowledge.deepspeed.combinations import Combination, when
from dsprof.rules.knowledge.releases import release

_STAGE = "zero_optimization.stage"

_OVERLAPPED = when(
    ".overlap_comm: true; .contiguous_gradients: true; engine.device: <accelerator>; .stage: 1|2"
)

NEVER_OVERLAPS = Combination(
    _OVERLAPPED,
    "from 0.17.5 to 0.18.4 backward waits for the reduction of each bucket, so that hardly "
    "anything overlaps (DeepSpeed#7804)",
    "upgrade to DeepSpeed 0.19.0 or later",
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
        "upgrade to DeepSpeed 0.19.0 or later, or set overlap_comm to false",
        Severity.HIGH,
        before=(0, 14, 3),
        config_patch=_NOT_OVERLAPPED,
    ),
    Combination(
        _OVERLAPPED,
        f"from 0.17.2 to 0.17.4, from the third bucket of a backward on, {_WRITES_INTO_IT} "
        "(DeepSpeed#7188)",
        "upgrade to DeepSpeed 0.19.0 or later, or set overlap_comm to false",
        Severity.HIGH,
        since=(0, 17, 2),
        before=(0, 17, 5),
        config_patch=_NOT_OVERLAPPED,
    ),
    NEVER_OVERLAPS,
    *(
        Combination(
            _OVERLAPPED | when(".stage: 2"),
            "before 0.19.0 the gradient of a parameter larger than reduce_bucket_size may be freed "
            "while its reduction still reads it (DeepSpeed#7965, where a loss became NaN)",
            "upgrade to DeepSpeed 0.19.0 or later; before, a larger reduce_bucket_size avoids it",
            since=since,
            before=before,
        )
        for since, before in (((0, 14, 3), (0, 17, 2)), ((0, 18, 5), (0, 19, 0)))
    ),
)
"""Defects of overlap_comm at stages 1 and 2, by release."""


def before_overlapping(version: str, stage: int | None) -> str:
    """Return what must be done before overlap_comm is set to true at a stage, "" if nothing.

    An unknown version has no known defect.
    """
    of = release(version)
    faults = (fault for fault in OVERLAP_FAULTS if of and fault.concerns(of))
    says = next((fault.says for fault in faults if fault.when[_STAGE](stage)), "")
    return f" Upgrade to DeepSpeed 0.19.0 or later first: {says}." if says else ""


AT_ODDS: tuple[Combination, ...] = (
    *OVERLAP_FAULTS,
    Combination(
        when("optimizer.type: muon; .reduce_scatter: true; .stage: 1|2"),
        "before 0.19.3 a matrix that lies in the parts of two ranks is updated by gradients of "
        "which a part was not reduced",
        "set zero_optimization.reduce_scatter to false, or upgrade to DeepSpeed 0.19.3",
        Severity.HIGH,
        before=(0, 19, 3),
        config_patch={"zero_optimization": {"reduce_scatter": False}},
    ),
    Combination(
        when(
            ".overlap_comm: true; .contiguous_gradients: false; engine.device: <accelerator>; "
            ".offload_optimizer.device: none; .stage: 1|2"  # offloading sets contiguous_gradients
        ),
        "with contiguous_gradients false the device is synchronised before each reduction, so that "
        "hardly anything overlaps",
        "set contiguous_gradients to true",
        Severity.MEDIUM,
        overlaps=True,
        config_patch={"zero_optimization": {"contiguous_gradients": True}},
    ),
    Combination(
        when(
            ".overlap_comm: true; .use_multi_rank_bucket_allreduce: false; .reduce_scatter: true; "
            ".contiguous_gradients: true; engine.device: <accelerator>; .stage: 1|2"
        ),
        "with use_multi_rank_bucket_allreduce false the device is synchronised before each "
        "reduction, so that hardly anything overlaps",
        "set use_multi_rank_bucket_allreduce to true, or overlap_comm to false",
        Severity.MEDIUM,
        overlaps=True,
        config_patch={"zero_optimization": {"use_multi_rank_bucket_allreduce": True}},
    ),
    *(
        Combination(
            when(
                f".{key}: true|false; .contiguous_gradients: false; "
                ".offload_optimizer.device: none; .stage: 1|2"
            ),
            "has no effect while contiguous_gradients is false: whole buckets are sent by "
            "all_reduce",
            "delete the key, or set contiguous_gradients to true",
            only_written=True,
        )
        for key in ("use_multi_rank_bucket_allreduce", "reduce_scatter")
    ),
    Combination(
        when(
            ".use_multi_rank_bucket_allreduce: true|false; .reduce_scatter: false; "
            ".contiguous_gradients: true; .stage: 1|2"
        ),
        "has no effect while reduce_scatter is false: whole buckets are sent by all-reduce",
        "delete the key, or set reduce_scatter to true",
        only_written=True,
    ),
    Combination(
        when(".overlap_comm: true; engine.kind: pipelineengine; .stage: 1|2"),
        "a pipeline engine switches it off",
        "delete the key",
        only_written=True,
    ),
    Combination(
        when("pipeline: <object>; .overlap_comm: true; .stage: 1|2"),
        "a pipeline engine, which a PipelineModule makes, switches overlap_comm off",
        "delete overlap_comm if the model is a PipelineModule",
        only_written=True,
        only_before=True,
    ),
    Combination(
        when("tensor_parallel.autotp_size: >1"),
        "the ranks that share a layer must be given the same data; in the first forward the engine "
        "compares it, and ends with 'Data inconsistency within the TP group' where it differs",
        "shard the data by the data-parallel rank and not by the global one: a sampler with "
        "num_replicas = world size / autotp_size and rank = global rank // autotp_size",
        only_written=True,
    ),
    Combination(
        when(".stage: 3; engine.experts_apart: >0"),
        "experts are in no leaf module: where ranks run different ones, ZeRO-3 hangs in an "
        "all-gather or a reduction that not all ranks join (DeepSpeed#7461)",
        "name the class of the block in zero_optimization.leaf_module.classes, or call "
        "deepspeed.utils.set_z3_leaf_modules(model, [Block]) before deepspeed.initialize, unless "
        "every rank runs every expert",
    ),
    *(
        Combination(
            when(f".{part}.pin_memory: false; .{part}.device: cpu; engine.device: <accelerator>"),
            "copies to and from pageable memory are slower, and the host waits for them",
            "set pin_memory to true where the host has memory to spare: pinned memory is never "
            "paged out",
            only_written=True,
        )
        for part in ("offload_optimizer", "offload_param")
    ),
    Combination(
        when(".offload_optimizer.device: nvme; .stage: 1|2"),
        "these stages offload to the memory of the host, whatever nvme_path says",
        'set device to "cpu", or stage to 3',
        Severity.MEDIUM,
    ),
    Combination(
        when(
            "wall_clock_breakdown: true; flops_profiler.enabled: false; "
            "engine.device: <accelerator>"
        ),
        "its timers wait for the device at the start and end of forward, backward and step; with "
        "overlap_comm, the all-reduce time that it prints means nothing",
        "set it to false where speed counts",
        Severity.LOW,
        config_patch={"wall_clock_breakdown": False},
    ),
    Combination(
        when("flops_profiler.enabled: true; engine.device: <accelerator>"),
        "switches wall_clock_breakdown on for all steps, not only for profile_step",
        "set it to false once the profile is there",
        Severity.LOW,
        config_patch={"flops_profiler": {"enabled": False}},
    ),
    Combination(
        when(".reduce_scatter: true; .contiguous_gradients: true; .stage: 1|2"),
        "stages 1 and 2 reduce gradients by all-reduce, or by reduce with "
        "use_multi_rank_bucket_allreduce false; reduce-scatter comes with stage 3",
        "no change is needed",
        only_written=True,
        only_before=True,
    ),
    Combination(
        when(  # Muon, prescale_gradients and gradient_predivide_factor need it
            ".reduce_scatter: false; optimizer.type: !muon; prescale_gradients: false; "
            "gradient_predivide_factor: 1; .stage: 3"
        ),
        "gradients are sent whole by all-reduce, and each rank keeps its share: twice the bytes",
        "delete the key: the default is true",
        Severity.MEDIUM,
        config_patch={"zero_optimization": {"reduce_scatter": True}},
        only_before=True,
    ),
    *(
        Combination(
            when(f".overlap_comm: false; engine.device: <accelerator>; {where}"),
            "without it, nothing is computed while gradients are reduced; only stage 3 has it on "
            "by default",
            "set overlap_comm to true; it needs memory for a second bucket",
            overlaps=True,
        )
        # At stage 1 DeepSpeed refuses it without managed accumulation.
        for where in (".stage: 2|3", ".stage: 1; managed_gradient_accumulation: true")
    ),
)
"""Conflicts that DeepSpeed accepts without a message."""
