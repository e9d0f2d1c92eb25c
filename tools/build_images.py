"""Build both images without CUDA, check them, and keep what was measured: `make images`.

    python tools/build_images.py                         with podman or buildah, and the base of a registry
    python tools/build_images.py --local-base            a base made by mmdebstrap, where there is no registry
    python tools/build_images.py --local-base --pip-conf pip.conf --ca ca.crt --find-links wheels

The images are kept in build/images, apart from those of whoever runs this. The engine's settings there ask for no limit
above the ones that this process has: a machine that may not raise limits (one without CAP_SYS_RESOURCE) needs that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STORE = ROOT / "build" / "images"
RESULTS = ROOT / "benchmarks" / "results" / "images.json"
LOCAL_BASE = "localhost/debian:bookworm-slim"
DEBIAN = "http://deb.debian.org/debian"
TIMEOUT_SECONDS = 3600
PODMAN, BUILDAH, MMDEBSTRAP = "podman", "buildah", "mmdebstrap"   # found on PATH
RANKWISE = [sys.executable, "-m", "rankwise", "image"]


def main() -> None:
    """Build and check train and dev; exit with 1 where one does not keep what it promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local-base", action="store_true")
    parser.add_argument("--network", default="host", help="network of the build's steps")
    for name in ("--pip-conf", "--ca", "--find-links"):
        parser.add_argument(name)
    options = parser.parse_args()
    variables = {**os.environ, **settings()}
    given = [word for name in ("pip_conf", "ca", "find_links") if (value := getattr(options, name))
             for word in (f"--{name.replace('_', '-')}", value)]
    if options.local_base:
        make_base(variables)
        given += ["--base", LOCAL_BASE]
    results = [built(kind, given, [f"--network={options.network}"], variables) for kind in ("train", "dev")]
    RESULTS.write_text(json.dumps({"machine": machine(), "images": results}, indent=2) + "\n")
    print(f"Written: {RESULTS.relative_to(ROOT)}")
    sys.exit(any(each["check"]["verdict"] != "ok" for each in results))


def settings() -> dict[str, str]:
    """The variables that name the engine's settings, which are written here."""
    STORE.mkdir(parents=True, exist_ok=True)
    storage, containers = STORE / "storage.conf", STORE / "containers.conf"
    storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{STORE}/store"\nrunroot = "{STORE}/run"\n')
    # buildah itself asks for no more processes than there are numbers for
    files, processes = (resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = most if processes == resource.RLIM_INFINITY else min(processes, most)
    own = f'"nofile={files}:{files}", "nproc={processes}:{processes}"'
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""   # crun asks for more of control groups
    containers.write_text(f'[containers]\ndefault_ulimits = [{own}]\n[engine]\n{runtime}cgroup_manager = "cgroupfs"\n'
                          'events_logger = "file"\n[network]\nnetwork_backend = "netavark"\n')
    return {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(containers),
            "BUILDAH_ISOLATION": "chroot"}


def make_base(variables: dict[str, str]) -> None:
    """Debian bookworm as an image, from Debian's own packages; nothing is done where it is there."""
    seen = subprocess.run([PODMAN, "image", "exists", LOCAL_BASE], env=variables, timeout=60, check=False)
    if seen.returncode == 0:
        return
    archive = STORE / "base.tar"
    subprocess.run([MMDEBSTRAP, "--quiet", "--variant=minbase", "bookworm", str(archive),
                    f"deb {DEBIAN} bookworm main"], check=True, timeout=TIMEOUT_SECONDS)
    subprocess.run([PODMAN, "import", "--quiet", str(archive), LOCAL_BASE], env=variables, check=True,
                   timeout=TIMEOUT_SECONDS)
    archive.unlink()


def built(kind: str, given: list[str], options: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """An image from its first step to its proof, with seconds of wall clock for both."""
    begin = time.monotonic()
    subprocess.run([*RANKWISE, "build", kind, "--engine", "buildah", *given, "--", *options], env=variables, check=True,
                   timeout=TIMEOUT_SECONDS)
    end = time.monotonic()
    proof = subprocess.run([*RANKWISE, "check", kind, "--engine", "podman", "--json"], env=variables, check=False,
                           capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if not proof.stdout:
        sys.exit(proof.stderr)
    print(proof.stdout)
    return {"kind": kind, "build_seconds": round(end - begin, 1), "check_seconds": round(time.monotonic() - end, 1),
            "check": json.loads(proof.stdout)}


def machine() -> dict[str, Any]:
    """What the times belong to; cores that others use meanwhile make them longer."""
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "system": platform.platform(),
            "buildah": subprocess.run([BUILDAH, "--version"], capture_output=True, text=True, timeout=60,
                                      check=True).stdout.strip()}


if __name__ == "__main__":
    main()
