"""A network between one rank and the others that can be cut, or made to lose what it carries.

The rank is in a network namespace. A cable (veth) is pulled out; a tunnel (tun) is carried by a
process that passes packets on, until it holds them or drops most of them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Fault = Literal["cut", "stall", "drop"]

NEEDS = ("/dev/net/tun", "/run/netns")

_NAME, _ADDRESS = "HANGS_NAMESPACE", "MASTER_ADDR"
_NEW_NETWORK = 0x40000000
_SET_INTERFACE, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000
_PACKET_BYTES = 1 << 16
_KEPT = 0.02  # of the packets, where most are dropped


@dataclass
class Network:
    """Two ends, of which `NAMEh` is this host's and `NAMEc` that of the namespace."""

    name: str
    fault: Fault
    has_fault: bool = False

    @classmethod
    def lay(cls, fault: Fault, folder: Path) -> Network:
        """Lay it, and tell the ranks by variables of this process; `remove` needs the folder."""
        own = os.getpid()
        name, base = f"ds{own % 100_000}", f"10.{200 + own % 50}.{own // 50 % 250}"
        (folder / "namespace").write_text(name)
        network = cls(name, fault)
        _ip(f"netns add {name}")
        if fault == "cut":
            _ip(f"link add {name}h type veth peer name {name}c")
        else:
            ends = [_tunnel(f"{name}{side}") for side in "hc"]
            threading.Thread(target=network._carry, args=ends, daemon=True).start()
        _ip(f"link set {name}c netns {name}")
        for netns, side, number in (("", "h", 1), (f"-n {name} ", "c", 2)):
            peer = "" if fault == "cut" else f" peer {base}.{3 - number}/32"
            size = 32 if peer else 24
            _ip(f"{netns}addr add {base}.{number}{peer or f'/{size}'} dev {name}{side}")
            _ip(f"{netns}link set {name}{side} up")
        _ip(f"-n {name} link set lo up")
        os.environ |= {_NAME: name, "GLOO_SOCKET_IFNAME": f"{name}h", _ADDRESS: f"{base}.1"}
        return network

    def fail(self) -> None:
        """Stop to carry what it should."""
        self.has_fault = True
        if self.fault == "cut":
            _ip(f"-n {self.name} link set {self.name}c down")

    def _carry(self, here: int, there: int) -> None:
        other, chance = {here: there, there: here}, random.Random(0)
        while True:
            for end in select.select([here, there], [], [])[0]:
                packet = os.read(end, _PACKET_BYTES)
                lost = self.has_fault and (self.fault == "stall" or chance.random() > _KEPT)
                if not lost:
                    with suppress(OSError):  # as long as the other end is not up
                        os.write(other[end], packet)


def remove(folder: Path) -> None:
    """Remove what was laid for a run, whatever is left of it."""
    if (noted := folder / "namespace").exists():
        name = noted.read_text()
        for command in (f"link del {name}h", f"netns del {name}"):
            subprocess.run(["ip", *command.split()], check=False, stderr=subprocess.DEVNULL)


def enter() -> None:
    """Move this process to the far end of the network, if there is one."""
    if name := os.environ.get(_NAME):
        with open(f"/run/netns/{name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["GLOO_SOCKET_IFNAME"] = f"{name}c"


def _tunnel(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH", name.encode(), _TUN | _NO_HEADER))
    return end


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)
