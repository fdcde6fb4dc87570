"""Trains a small GPT-2 under trainers of others, one after the other; knows nothing of dsprof.

    program.py OUT CASE... [--oracle]

Each rank writes OUT/rankN.json: {case: {"steps", "micro_batches", "start_ns", "end_ns", "ops"}}.
Steps are counted by the trainer and micro-batches by the model. With `--oracle` torch's
ExecutionTraceObserver counts the operations by phase: "ops" is {"phase/op": calls}.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from tests.dist.leaving import leave_group
from tests.phase_oracle import counted, label_phases
from tests.trainers import on_cpu

STEPS = 3
ACCUMULATION = 2
BATCH = 2
TOKENS = 16
RANKS = 2
VOCABULARY = 100

micro_batches = 0


class Tokens(Dataset):
    """Random sequences, the same in every run."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        size = (STEPS * ACCUMULATION * BATCH * RANKS, TOKENS)
        self.rows = torch.randint(VOCABULARY, size, generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def small_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=32, n_layer=2, n_head=2, bos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    model.register_forward_pre_hook(count_micro_batch)
    return model


def count_micro_batch(*_: Any) -> None:
    global micro_batches
    micro_batches += 1


def zero_config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 10_000,
            "stage3_param_persistence_threshold": 0,
        },
    }


# -- Hugging Face Trainer -------------------------------------------------------------------------


def hf_trainer(out: Path, **how: Any) -> int:
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        output_dir=str(out / "hf"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=2,
        **how,
    )
    trainer = Trainer(model=small_gpt2(), args=args, train_dataset=Tokens())
    trainer.train()
    return trainer.state.global_step


def hf_deepspeed(out: Path, stage: int) -> int:
    return hf_trainer(
        out, deepspeed={**zero_config(stage), "gradient_accumulation_steps": ACCUMULATION}
    )


def hf_fsdp(out: Path, version: int) -> int:
    config = {
        "version": version,
        "transformer_layer_cls_to_wrap": [GPT2Block.__name__],
        "sync_module_states": False,  # Accelerate asks for an accelerator for these two
        "cpu_ram_efficient_loading": False,
    }
    return hf_trainer(out, fsdp="full_shard auto_wrap", fsdp_config=config)


# -- Accelerate -----------------------------------------------------------------------------------


def accelerate_loop(**plugin: Any) -> int:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION, **plugin)
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Tokens(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = 0
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
    return steps


def accelerate_deepspeed(out: Path, stage: int) -> int:
    from accelerate import DeepSpeedPlugin

    config = {**zero_config(stage), "gradient_accumulation_steps": ACCUMULATION}
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    try:
        return accelerate_loop(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    finally:
        del os.environ["ACCELERATE_USE_DEEPSPEED"]


def accelerate_fsdp(out: Path, version: int) -> int:
    from accelerate import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[GPT2Block.__name__],
    )
    return accelerate_loop(fsdp_plugin=plugin)


# -- Lightning ------------------------------------------------------------------------------------


def lightning_trainer(out: Path, strategy: Any, wrap: Callable[[Any], Any] = lambda m: m) -> int:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = small_gpt2()

        def configure_model(self) -> None:
            self.model = wrap(self.model)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(
        accelerator=on_cpu.lightning_accelerator(),
        devices=RANKS,
        strategy=strategy,
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATION,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(out),
    )
    trainer.fit(Module(), DataLoader(Tokens(), batch_size=BATCH))
    return trainer.global_step


def lightning_deepspeed(out: Path, stage: int) -> int:
    from lightning.pytorch.strategies import DeepSpeedStrategy

    return lightning_trainer(out, DeepSpeedStrategy(config=zero_config(stage)))


def lightning_fsdp(out: Path) -> int:
    from lightning.pytorch.strategies import FSDPStrategy
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    # Lightning leaves a model alone that its user has wrapped, and would name no device but a GPU.
    wrap = functools.partial(
        FullyShardedDataParallel,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({GPT2Block}),
        use_orig_params=True,
    )
    return lightning_trainer(out, FSDPStrategy(), wrap)


CASES: dict[str, Callable[[Path], int]] = {
    "trainer-ddp": functools.partial(hf_trainer, use_cpu=True),
    "trainer-fsdp1": functools.partial(hf_fsdp, version=1),
    "trainer-fsdp2": functools.partial(hf_fsdp, version=2),
    "accelerate-fsdp1": functools.partial(accelerate_fsdp, version=1),
    "accelerate-fsdp2": functools.partial(accelerate_fsdp, version=2),
    "lightning-fsdp": lightning_fsdp,
    "trainer-zero2": functools.partial(hf_deepspeed, stage=2),
    "trainer-zero3": functools.partial(hf_deepspeed, stage=3),
    "accelerate-zero2": functools.partial(accelerate_deepspeed, stage=2),
    "accelerate-zero3": functools.partial(accelerate_deepspeed, stage=3),
    "lightning-zero2": functools.partial(lightning_deepspeed, stage=2),
    "lightning-zero3": functools.partial(lightning_deepspeed, stage=3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--oracle", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if args.oracle:
        label_phases()
    results = {}
    for case in args.cases:
        global micro_batches
        micro_batches, start_ns, ops = 0, time.perf_counter_ns(), None
        on_cpu.allow_accelerate(case != "trainer-ddp")
        run = functools.partial(CASES[case], args.out)
        if args.oracle:
            steps, ops = counted(run, args.out / f"{case}.rank{rank}.execution.json")
        else:
            steps = run()
        results[case] = {
            "steps": steps,
            "micro_batches": micro_batches,
            "start_ns": start_ns,
            "end_ns": time.perf_counter_ns(),
            "ops": ops,
        }
        print("RESULT", case, rank, results[case], flush=True)
        (args.out / f"rank{rank}.json").write_text(json.dumps(results))
    leave_group()


if __name__ == "__main__":
    main()
