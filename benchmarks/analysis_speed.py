"""What a report costs: CPU seconds and peak memory of reading, summarising and judging a run.

    python -m benchmarks.analysis_speed [EVENTS]

Writes a trace of EVENTS collectives (default one million) over 1,000 steps, judges it in a fresh
process, and compares with the goals.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.scale_runs import Size, write_run

GOAL_CPU_SECONDS = 2.5
GOAL_PEAK_MB = 400
STEPS = 1000

JUDGE = """
import json, resource, sys
from dsprof.diagnosis.build import diagnose
from dsprof.trace.run import find_run
diagnose(find_run([sys.argv[1]]))
usage = resource.getrusage(resource.RUSAGE_SELF)
status = open("/proc/self/status").read()  # ru_maxrss may be that of the writer of the run
result = {
    "cpu_seconds": usage.ru_utime + usage.ru_stime,
    "peak_mb": int(status.partition("VmHWM:")[2].split()[0]) / 1024,
}
print(json.dumps(result))
"""


def main() -> int:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), Size(1, STEPS, events // STEPS))
        [path] = Path(folder).iterdir()
        command = [sys.executable, "-c", JUDGE, str(path)]
        cached = os.environ | {"DSPROF_CACHE": f"{folder}/cache"}  # as at any first reading
        result = json.loads(subprocess.check_output(command, env=cached))
        print(f"{events:,} collectives, {path.stat().st_size / 1e6:.0f} MB")
    print(f"CPU   {result['cpu_seconds']:6.2f} s   goal {GOAL_CPU_SECONDS} s")
    print(f"peak  {result['peak_mb']:6.0f} MB  goal {GOAL_PEAK_MB} MB")
    met = result["cpu_seconds"] <= GOAL_CPU_SECONDS and result["peak_mb"] <= GOAL_PEAK_MB
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
