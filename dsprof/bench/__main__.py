"""One rank of `dsprof bench`; a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

from __future__ import annotations

import os
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import torch
import torch.distributed as dist

from dsprof._version import __version__
from dsprof.analysis.baseline import SCHEMA_VERSION, Baseline, Hiding, Machine
from dsprof.bench.contention import measure_hiding
from dsprof.bench.groups import PATIENCE, devices_of, host_name, join, stages, told
from dsprof.bench.measure import Outcome, Wrong, measure
from dsprof.bench.options import Options, add_options, default_sizes
from dsprof.bench.products import measure_products
from dsprof.bench.table import described
from dsprof.environment import snapshot
from dsprof.errors import DsprofError, escaped
from dsprof.files.json_documents import json_document
from dsprof.reports.write import write_whole


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code: 1 for wrong results, 2 for a mistake, 3 for a failure."""
    parser = ArgumentParser(prog="python -m dsprof.bench")
    add_options(parser)
    options = Options.of(parser.parse_args(argv))
    try:
        return _run(options)
    except DsprofError as error:
        print(f"dsprof: {error}", file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001 - Python's exit code is that of a wrong result
        traceback.print_exc()
        return 3


def _run(options: Options) -> int:
    backend, device = _chosen(options.backend)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        dist.init_process_group(backend)
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise DsprofError(
            f"cannot join the other ranks: {why}; start it with torchrun or dsprof bench"
        ) from None
    try:
        return _measured(options, backend, device, started)
    finally:
        dist.destroy_process_group()


def _chosen(backend: str) -> tuple[str, torch.device]:
    """Return the backend, and the device of this rank that goes with it.

    Raises:
        DsprofError: torch does not know the backend.
    """
    if not backend:
        backend = dist.Backend.default_device_backend_map.get(_accelerator(), "gloo")
    devices = devices_of(backend)
    if "cpu" in devices:
        return backend, torch.device("cpu")
    device = torch.device(devices[0], int(os.environ.get("LOCAL_RANK", "0")))
    getattr(torch, device.type).set_device(device)
    return backend, device


def _accelerator() -> str:
    if torch.cuda.is_available():
        return "cuda"
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and later
    found = accelerator.current_accelerator() if accelerator is not None else None
    return found.type if found is not None else "cpu"


def _measured(options: Options, backend: str, device: torch.device, started: str) -> int:
    size = dist.get_world_size()
    if size < 2:
        raise DsprofError("a single rank cannot communicate; start two or more: --nproc-per-node 2")
    everyone = dist.new_group(backend="gloo", timeout=PATIENCE)
    hosts = told(host_name(), everyone, size)
    sizes = options.sizes or default_sizes(device.type)
    found, hiding = _stages(hosts, backend, device, sizes, everyone)
    products = measure_products(device, everyone, size)
    machine = _machine(hosts, backend, device, everyone)
    # By its end gloo's threads hold no tensor: releasing one while Python ends would abort.
    dist.barrier(everyone)
    wrong = [one for outcome in found for one in outcome.wrong]
    if dist.get_rank() == 0:
        if wrong:
            _complain(wrong, options)
        else:
            costs = [cost for outcome in found for cost in outcome.costs]
            costs.sort(key=lambda cost: (-cost.group_size, cost.group, cost.ranks))
            unsupported = {op: why for one in found for op, why in one.unsupported.items()}
            baseline = Baseline(
                schema_version=SCHEMA_VERSION,
                machine=machine,
                costs=tuple(costs),
                hiding=hiding,
                products=products,
                unsupported=unsupported,
                started=started,
                dsprof_version=__version__,
            )
            _keep(baseline, options)
    return 1 if wrong else 0


def _complain(wrong: Sequence[Wrong], options: Options) -> None:
    for one in wrong:
        print(f"dsprof: wrong result: {one}", file=sys.stderr)
    print(f"dsprof: nothing was written to {options.output}", file=sys.stderr)


def _keep(baseline: Baseline, options: Options) -> None:
    write_whole(options.output, json_document(baseline))
    said = f"{described(baseline)}\n\nBaseline: {escaped(os.path.realpath(options.output))}\n"
    sys.stdout.buffer.write(said.encode())  # whatever the locale says


def _stages(
    hosts: Sequence[str], backend: str, device: torch.device, sizes: Sequence[int], everyone: Any
) -> tuple[list[Outcome], Hiding | None]:
    """Measure stage by stage; return what the teams found, the same on every rank."""
    mine, hiding = [], None
    for stage in stages(hosts):
        team = join(stage, backend)
        if team is not None:
            found = measure(team, device, sizes)
            mine += [found] if team.me == 0 else []
            if hiding is None and not found.wrong and "all_reduce" not in found.unsupported:
                hiding = measure_hiding(team, device, sizes[-1])
        dist.barrier(everyone)
    return [outcome for those in told(mine, everyone, len(hosts)) for outcome in those], hiding


def _machine(hosts: Sequence[str], backend: str, device: torch.device, everyone: Any) -> Machine:
    here = snapshot(os.environ)
    gpus = told(here.gpus, everyone, len(hosts))
    return Machine(
        hosts=tuple(dict.fromkeys(hosts)),
        world_size=len(hosts),
        backend=backend,
        device=device.type,
        gpus=tuple(sorted({name for names in gpus for name in names})),
        network_devices=tuple(here.network_devices),
        versions=here.versions,
        usable_cpus=here.limits.get("usable_cpus", 0),
        threads=torch.get_num_threads(),
        precision=here.precision,
    )


if __name__ == "__main__":
    sys.exit(main())
