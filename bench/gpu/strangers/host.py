"""Runs a training script that knows nothing of this benchmark: `python host.py SCRIPT [flags]`.

FIT_FRACTION makes the card smaller before the script begins; FIT_SIDE names the file for its
allocator peaks afterwards; FIT_TINY=1 gives the flags of the script's line "# tiny: ...", with
which it runs on a CPU in seconds.
"""

import json
import os
import re
import runpy
import sys

import torch


def main():
    script = sys.argv[1]
    tiny = (
        re.search(r"^# tiny:(.*)$", open(script).read(), re.M).group(1).split()
        if os.environ.get("FIT_TINY")
        else []
    )
    sys.argv = [script] + tiny + sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    if torch.cuda.is_available() and os.environ.get("FIT_FRACTION"):
        torch.cuda.set_per_process_memory_fraction(float(os.environ["FIT_FRACTION"]))
    runpy.run_path(script, run_name="__main__")
    if torch.cuda.is_available() and os.environ.get("FIT_SIDE"):
        side = {
            "reserved": torch.cuda.max_memory_reserved(),
            "allocated": torch.cuda.max_memory_allocated(),
            "total": torch.cuda.mem_get_info()[1],
        }
        with open(os.environ["FIT_SIDE"], "w") as f:
            json.dump(side, f)


main()
