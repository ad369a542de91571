"""What was measured of GPU libraries, in bytes. The planner in Go reads the same file."""

import json
import os
from typing import Dict

with open(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.json"), encoding="utf-8"
) as _file:
    FACTS: Dict[str, int] = json.load(_file)
