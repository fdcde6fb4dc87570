"""Trains a small GPT-2 with the Hugging Face Trainer; nothing here knows of dsprof.

Needs transformers and accelerate (pip install 'dsprof[trainers]'); nothing is downloaded. Two
processes on CPU, then the same under DeepSpeed ZeRO on GPUs:

    DSPROF=1 python -m torch.distributed.run --standalone --nproc-per-node 2 \
        examples/hf_trainer.py
    DSPROF=1 python -m torch.distributed.run --standalone --nproc-per-node 2 \
        examples/hf_trainer.py --stage 3
    dsprof report dsprof-out
"""

import argparse
import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY = 256
TOKENS = 64


class Squares(Dataset):
    """Sequences to predict: i-th token is (start + i * i) modulo 256."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + torch.arange(TOKENS) ** 2) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def zero_config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            "reduce_bucket_size": 1_000_000,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=0, help="ZeRO stage; 0 is plain DDP")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    args = parser.parse_args()
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=128,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    training = TrainingArguments(
        output_dir="hf-trainer-out",
        max_steps=args.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        deepspeed=zero_config(args.stage) if args.stage else None,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=training, train_dataset=Squares())
    trainer.train()
    torch.distributed.barrier()  # as in examples/deepspeed_zero.py
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
