"""The model that ZeRO is tried on, and what its flushes must be by hand.

Each layer has 65,792 gradients, so the bucket of 140,000 takes two layers: each backward flushes
once because the bucket is full, and once at its end.
"""

WIDTH = 256
LAYERS = 4
CAPACITY = 140_000
ACCUMULATION = 2
STEPS = 3
STAGES = (1, 2, 3)

LARGEST = WIDTH * WIDTH
GRADIENTS = LAYERS * (WIDTH * WIDTH + WIDTH)
CAUSES = ["full", "end of backward"]


def reductions_a_step(stage: int) -> int:
    """Return how often the gradients are reduced in an optimizer step: stage 1 accumulates."""
    return 1 if stage == 1 else ACCUMULATION
