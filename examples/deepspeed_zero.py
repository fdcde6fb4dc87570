"""Trains a byte-level language model on the standard library's own sources with DeepSpeed ZeRO.

Nothing is downloaded and nothing here knows of dsprof. Two processes on one machine:

    DSPROF=1 python -m torch.distributed.run --standalone --nproc-per-node 2 \
        examples/deepspeed_zero.py --stage 2
    dsprof report dsprof-out
"""

import argparse
import sysconfig
import time
from functools import cache
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

VOCABULARY = 256  # a token is a byte


class Block(nn.Module):
    """Causal self-attention and an MLP, each with a norm before and a residual around."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(x)


class LanguageModel(nn.Module):
    """A GPT: tokens [batch, context + 1] in, mean next-byte loss out."""

    def __init__(self, width: int, layers: int, heads: int, context: int, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        position = torch.arange(inputs.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(inputs) + self.positions(position))
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def standard_library() -> Tensor:
    """All modules at the top of the standard library as one row of bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, files))), dtype=torch.uint8)


def sample(text: Tensor, batch: int, context: int, generator: torch.Generator) -> Tensor:
    """Draw `batch` windows of `context` + 1 tokens."""
    starts = torch.randint(len(text) - context, (batch, 1), generator=generator)
    return text[starts + torch.arange(context + 1)].long()


@cache
def fast_dtype() -> torch.dtype:
    """Return bfloat16 or float32, whichever this CPU multiplies faster: the same on all ranks.

    A CPU without instructions for bfloat16 emulates it, and is then up to 40 times slower.
    """
    dtypes = torch.bfloat16, torch.float32
    times_ms = torch.tensor([multiplication_ms(dtype) for dtype in dtypes])
    dist.all_reduce(times_ms, dist.ReduceOp.MAX)  # the slowest rank decides
    bfloat16_ms, float32_ms = times_ms.tolist()
    fast = torch.bfloat16 if bfloat16_ms < float32_ms else torch.float32
    if dist.get_rank() == 0:
        print(
            f"dtype {str(fast).removeprefix('torch.')}: this CPU multiplies two 256x256 matrices "
            f"in {bfloat16_ms:.2f} ms in bfloat16 and in {float32_ms:.2f} ms in float32",
            flush=True,
        )
    return fast


def multiplication_ms(dtype: torch.dtype) -> float:
    """Return the shortest of three times that a product of 256x256 matrices takes."""
    matrix, times_ms = torch.ones(256, 256, dtype=dtype), []
    for _ in range(3):
        start_ns = time.perf_counter_ns()
        matrix @ matrix
        times_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
    return min(times_ms)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=2, choices=range(4), help="ZeRO stage")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps")
    parser.add_argument("--tied", action="store_true", help="share embedding and output weights")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a micro-step and rank")
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], help="default: what is fast here"
    )
    parser.add_argument("--local_rank", type=int, help="given by the deepspeed launcher")
    return parser.parse_args()


def zero_config(args: argparse.Namespace, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": dtype is torch.bfloat16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {
            "stage": args.stage,
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 1_000_000,
        },
    }


def main() -> None:
    args = arguments()
    on_cpu = get_accelerator().device_name() == "cpu"
    deepspeed.init_distributed(dist_backend="gloo" if on_cpu else None)
    if args.dtype:
        dtype = getattr(torch, args.dtype)
    else:
        dtype = fast_dtype() if on_cpu else torch.bfloat16
    torch.manual_seed(0)
    model = LanguageModel(args.width, args.layers, args.width // 64, args.context, args.tied)
    engine, *_ = deepspeed.initialize(model=model, config=zero_config(args, dtype))
    text = standard_library()
    generator = torch.Generator().manual_seed(dist.get_rank())
    accumulation = engine.gradient_accumulation_steps()
    for step in range(args.steps):
        for _ in range(accumulation):
            loss = engine(sample(text, args.batch, args.context, generator).to(engine.device))
            engine.backward(loss)
            engine.step()
        if dist.get_rank() == 0 and (step + 1) % 5 == 0:
            print(f"step {step + 1:3d}  loss {loss.item():.3f}", flush=True)
    # A gloo thread that releases a tensor while Python ends aborts the process, dsprof or not: it
    # takes the GIL there. A barrier has no tensor, and mostly outlasts all that do.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
