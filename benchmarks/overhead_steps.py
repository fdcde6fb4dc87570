"""Trains the demo's model and switches recording on and off from step to step: what it adds.

Neighbouring steps are compared, so that a busy machine disturbs both alike: on, off, off, on. It
knows nothing of hooks, and is what their own times are held against. Hooks of a step that is not
recorded stay in place and pass calls on. Run it by torchrun with 2 ranks; each prints a line.
"""

import argparse
import gc
import random
import time
from statistics import mean, median, stdev

import deepspeed
import torch.distributed as dist

from benchmarks.overhead_training import SCALES, TRAININGS, dsprof_on
from dsprof.recording.recorder.recorder import Recorder
from tests.dist.leaving import leave_group

WARM_STEPS, STEPS = 6, 1140
OUTER = 0.1  # of the pairs, the largest and the smallest: the kernel was at work
SAMPLES = 300  # of the bootstrap that tells the error
QUADS = ((True, False, False, True), (False, True, True, False))


def inner_mean(values: list[float]) -> float:
    """Return the mean without the outer values."""
    cut = int(len(values) * OUTER)
    return mean(sorted(values)[cut : len(values) - cut])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("training", choices=[name for name in TRAININGS if "ZeRO" in name])
    parser.add_argument("scale", choices=SCALES)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    step, end = TRAININGS[args.training](SCALES[args.scale])
    added, walls = [], []
    with dsprof_on():
        for _ in range(WARM_STEPS):
            step()
        recorder = next(o for o in gc.get_objects() if type(o) is Recorder and o.recording)
        for number in range(args.steps // 4):
            spent = {True: 0.0, False: 0.0}
            for is_on in QUADS[number % 2]:
                recorder.recording, recorder.stopped = is_on, not is_on
                wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
                step()
                spent[is_on] += (time.thread_time_ns() - cpu) / 2e6
                walls.append((time.perf_counter_ns() - wall) / 1e6)
            added.append(spent[True] - spent[False])
        recorder.recording, recorder.stopped = True, False
    error = stdev(inner_mean(random.choices(added, k=len(added))) for _ in range(SAMPLES))
    print(
        f"rank {dist.get_rank()}, {args.training} {args.scale}, step of {median(walls):.0f} ms:"
        f" the training thread takes {inner_mean(added):+.2f} ms more (+- {error:.2f})"
    )
    end()
    leave_group()


if __name__ == "__main__":
    main()
