"""Builds memroom's wheel from its source distribution, for pip: the hooks of PEP 517."""

import os
import platform
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Optional

GO = "1.26"
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def get_requires_for_build_wheel(config_settings: Optional[Dict[str, Any]] = None) -> List[str]:
    return []


def build_wheel(
    wheel_directory: str,
    config_settings: Optional[Dict[str, Any]] = None,
    metadata_directory: Optional[str] = None,
) -> str:
    if not shutil.which("go"):
        sys.exit(
            "memroom is written in Go: building it from source needs Go %s or newer on PATH "
            "(https://go.dev/dl). Wheels need no Go: pip install --only-binary :all: memroom" % GO
        )
    machine = MACHINES.get(platform.machine().lower())
    if sys.platform not in ("linux", "darwin") or machine is None:
        sys.exit("memroom has no build for %s on %s" % (sys.platform, platform.machine()))
    name = "memroom-%s-%s" % (sys.platform, machine)
    out = os.path.abspath(wheel_directory)
    environ = dict(os.environ, CGO_ENABLED="0", GOFLAGS="-trimpath")
    binary = os.path.join(out, name)
    subprocess.check_call(
        ["go", "build", "-ldflags=-s -w", "-o", binary, "./cmd/memroom"], env=environ
    )
    with open("VERSION") as file:
        version = file.read().strip()
    wheel = subprocess.check_output(
        ["go", "run", "./probe/wheel", "-version", version, "-dist", out, "-only", name],
        env=environ,
        text=True,
    )
    os.remove(binary)
    return os.path.basename(wheel.strip())
