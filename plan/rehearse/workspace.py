"""What cuBLAS keeps for each thread that multiplies matrices."""

import os
import re


def blas_workspace(usual: int) -> int:
    """Bytes of cuBLAS's workspace. Scripts that want the same results each time set
    CUBLAS_WORKSPACE_CONFIG (":4096:8": eight buffers of 4096 KiB), which torch reads when the first
    matrices are multiplied.
    """
    asked = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(kib) * 1024 * int(count) for kib, count in asked) if asked else usual
