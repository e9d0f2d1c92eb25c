"""From the command to the first all-reduce: `rankwise run` against torchrun, cold, with nothing left resident.

    python benchmarks/launch.py                   2 gloo ranks, 10 pairs, A/A control
Also prints `import rankwise` and `rankwise --help`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from interleave import as_json, comparisons, measure, table

SCRIPT = """
import time, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write(repr(time.time()))
dist.destroy_process_group()
"""
BIN = Path(sys.executable).parent


def until_first_all_reduce(command: list[str], stamp: Path) -> float:
    """Seconds from starting the command until rank 0's first all-reduce was done."""
    stamp.unlink(missing_ok=True)
    started = time.time()
    subprocess.run([*command, str(stamp)], check=True, timeout=120, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return float(stamp.read_text()) - started


def whole(command: list[str]) -> float:
    """Seconds of a whole process."""
    started = time.perf_counter()
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--devices", type=int, default=2)
    options.add_argument("--output", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script, stamp = Path(folder) / "script.py", Path(folder) / "stamp"
        script.write_text(SCRIPT)
        torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(asked.devices), str(script)]
        rankwise = [str(BIN / "rankwise"), "run", str(script), "--mode", "ddp", "--devices", str(asked.devices),
                    "--runs", str(Path(folder) / "runs"), "--"]

        def once(command: list[str]) -> float:
            return until_first_all_reduce(command, stamp)

        found = comparisons(measure({"torchrun": lambda: once(torchrun), "rankwise run": lambda: once(rankwise)},
                               control=lambda: once(torchrun), rounds=asked.rounds, warm_up=1))
    print(table(f"launch to the first all-reduce, {asked.devices} ranks", found))
    python = sys.executable
    single = {
        "python -c pass": [python, "-c", "pass"],
        "import rankwise": [python, "-c", "import rankwise"],
        "import torch": [python, "-c", "import torch"],
        "rankwise --help": [str(BIN / "rankwise"), "--help"],
    }
    seconds = {name: sorted(whole(command) for _ in range(7))[3] for name, command in single.items()}
    for name, value in seconds.items():
        print(f"{name}: {value * 1e3:.0f} ms")
    if asked.output:
        asked.output.write_text(json.dumps({"load": os.getloadavg(), "launch": as_json(found),
                                            "seconds": seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
