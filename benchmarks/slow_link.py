"""A network of our own between the ranks, slow enough that its costs are those of a step.

Between processes of one machine a message costs what the scheduler makes of it. In a network
namespace (which needs no rights) the kernel holds the packets of the loopback back instead: for
their bytes, and each one for the overhead that it is charged with, its latency.
"""

import os
import shutil
import subprocess
import sys

RATE = "1gbit"
OVERHEAD_BYTES = 25_000  # a packet; at the rate above 200 us
_INSIDE = "SLOW_LINK_ENTERED"
_QUEUE = f"rate {RATE} overhead {OVERHEAD_BYTES} burst 128kb limit 100mb"  # no packet is dropped
_ENTER = f'ip link set lo up && tc qdisc add dev lo root tbf {_QUEUE} && exec "$@"'


def behind_link() -> list[str]:
    """Return what starts a command behind the slow link; [] where the machine does not allow it."""
    command = ["unshare", "--map-root-user", "--net", "sh", "-c", _ENTER, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        return []
    return command


def enter(module: str) -> str:
    """Start this program anew as `python -m module` behind the slow link; say what link it has.

    Returns without doing so where the machine does not allow it, or where it is done already.
    """
    if os.environ.get(_INSIDE):
        return f"{RATE}, {OVERHEAD_BYTES} bytes charged for a packet, over the loopback"
    command = behind_link()
    if not command:
        return "bare loopback: the machine does not allow a slower one (unshare, ip, tc)"
    os.environ[_INSIDE] = "1"
    os.execvp(command[0], [*command, sys.executable, "-m", module, *sys.argv[1:]])
    raise AssertionError("not reached")
