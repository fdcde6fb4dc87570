"""Trains a few steps, then reads our page of torch's debug server while rank 1 waits for rank 0."""

import sys
import time
import urllib.request

import torch
import torch.distributed as dist
from torch.distributed.debug import start_debug_server, stop_debug_server

import dsprof
from dsprof.api.torch_debug import DebugPage

PORT = 25999


def page() -> str:
    while True:
        try:
            with urllib.request.urlopen(f"http://localhost:{PORT}/dsprof") as answer:
                text: str = answer.read().decode()
                return text
        except OSError:  # it has not started yet
            time.sleep(0.1)


def main(out: str) -> None:
    dsprof.enable(out=out)
    dist.init_process_group("gloo")
    start_debug_server(port=PORT, start_method="spawn", handlers=[DebugPage()])
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
        dsprof.step()
    for name in ("RECORDING", "DISABLED"):
        if dist.get_rank() == 0:
            while name == "RECORDING" and "barrier" not in (text := page()):
                pass
            print(name, text if name == "RECORDING" else page(), "END", flush=True)
        dist.barrier()
        dsprof.disable()
        dist.barrier()
    if dist.get_rank() == 0:
        stop_debug_server()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
