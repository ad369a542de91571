"""Hugging Face Trainer, PEFT and Lightning: what their defaults keep."""

import ast
import re
from typing import List

from .names import File


def _arguments(file: File) -> List[ast.Call]:
    return [
        n
        for n in file.nodes
        if isinstance(n, ast.Call)
        and re.search(
            r"(TrainingArguments|SFTConfig|DPOConfig|ORPOConfig|KTOConfig|RewardConfig)$",
            file.callee(n) or "",
        )
    ]
