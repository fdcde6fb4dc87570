"""The mistakes by name, with the rule that finds each and what is changed then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

from examples.wrong.training import Patch, Step


@dataclass(frozen=True)
class Case:
    """A function of the same name in one of the modules here makes the training."""

    module: str  # of this folder; DeepSpeed is imported only by what needs it
    rule: str  # finds the mistake
    change: str  # what is done about it
    saves: bool = True  # or it looks wasteful and is not
    variables: Mapping[str, str] = field(default_factory=dict)  # of its processes

    def make(self, name: str, patch: Patch | None) -> Step:
        """Return what trains a step: with the mistake (None), or with what the finding names."""
        function = getattr(import_module(f"examples.wrong.{self.module}"), name)
        step: Step = function(patch)
        return step


AVX2_ONLY = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
"""Makes torch compute as on a CPU without AVX-512."""

CASES = {
    "reduction_every_micro_step": Case(
        "ddp", "reduction-every-micro-step", "`no_sync()` around all micro-steps but the last"
    ),
    "tiny_buckets": Case("ddp", "small-collectives", "`bucket_cap_mb=25`"),
    "giant_bucket": Case("ddp", "giant-bucket", "`bucket_cap_mb=1`"),
    "small_reduce_buckets": Case("zero", "small-collectives", "the patch: `reduce_bucket_size`"),
    "fp32_gradients": Case("zero", "fp32-gradients", "the patch: `communication_data_type`"),
    "needless_gathers": Case(
        "zero",
        "repeated-parameter-gathers",
        "the patch: `stage3_max_reuse_distance`",
    ),
    "no_prefetch": Case("zero", "low-comm-overlap", "the patch: `stage3_prefetch_bucket_size`"),
    "reference_products": Case(
        "zero", "unaccelerated-precision", "the patch: `bf16` off", variables=AVX2_ONLY
    ),
    "late_rank": Case("loop", "late-rank", "rank 1 takes as long as the others"),
    "barriers": Case("loop", "barrier-in-step", "no barriers"),
    "scalars": Case("loop", "scalar-collectives", "one collective for all metrics"),
    "hidden_reductions": Case(
        "ddp", "reduction-every-micro-step", "`no_sync()` around all but the last", saves=False
    ),
    "hidden_tiny_buckets": Case("ddp", "small-collectives", "`bucket_cap_mb=25`", saves=False),
    "barrier_before_reduction": Case("loop", "barrier-in-step", "no barrier", saves=False),
}
