"""Parts of a quantized model in float32.

severity: info
remedy: checkpointing

The quantized layers stay small. Embeddings and lm_head double from 2 to 4 bytes a parameter,
and float32 logits double too. For large vocabularies that can be more than quantization saved.

Instead: Skip prepare_model_for_kbit_training and freeze the base yourself, or cast embeddings
and lm_head back to bfloat16 after it. Keep gradient checkpointing on.
"""

import ast
import re
from typing import Iterator

from ..findings import Finding, finding
from ..names import File


def kbit_upcast(file: File) -> Iterator[Finding]:
    """prepare_model_for_kbit_training"""
    for call in file.nodes:
        if isinstance(call, ast.Call) and (file.callee(call) or "").split(".")[-1] in (
            "prepare_model_for_kbit_training",
            "prepare_model_for_int8_training",
        ):
            yield finding(
                "kbit-upcast",
                call,
                "this upcasts every weight that is not quantized to float32: "
                + ("norms and embeddings" if _without_head(file) else _WITH_HEAD),
            )


_WITH_HEAD = "norms, embeddings, lm_head, and with it the logits"


_HEADLESS = re.compile(r"^AutoModel$|For(Sequence|Token|Image|Audio)Classification$|^SEQ_CLS$")


def _without_head(file: File) -> bool:
    """A classifier or a bare encoder: no logits of a vocabulary"""
    names = {
        n.attr if isinstance(n, ast.Attribute) else n.id
        for n in file.nodes
        if isinstance(n, (ast.Name, ast.Attribute))
    }
    return any(_HEADLESS.search(n) for n in names) and not any("CausalLM" in n for n in names)


CHECKS = (kbit_upcast,)
