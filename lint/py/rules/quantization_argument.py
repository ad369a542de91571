"""Wrong quantization argument.

severity: error
remedy: quantize_8bit

An option that does not exist leaves the model in full precision: the memory it should have
saved is used.

Instead: See the arguments of transformers.BitsAndBytesConfig for your version.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..names import constant, keyword

KNOWN = frozenset(
    """load_in_8bit load_in_4bit llm_int8_threshold llm_int8_skip_modules llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight
    bnb_4bit_compute_dtype bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage""".split()
)


def check(file: Any) -> Iterator[Any]:
    for call in file.nodes:
        if (
            not isinstance(call, ast.Call)
            or (file.callee(call) or "").split(".")[-1] != "BitsAndBytesConfig"
        ):
            continue
        on = [
            name
            for name in ("load_in_8bit", "load_in_4bit")
            if constant(keyword(call, name)) is True
        ]
        unknown = next((k for k in call.keywords if k.arg and k.arg not in KNOWN), None)
        if unknown is not None:
            yield finding(
                "quantization-argument",
                unknown.value,
                "BitsAndBytesConfig knows no `%s`: it is ignored or refused, the model loads as if "
                "it were not there" % unknown.arg,
            )
        if len(on) == 2:
            yield finding(
                "quantization-argument", call, "load_in_8bit and load_in_4bit exclude each other"
            )
        kind = keyword(call, "bnb_4bit_quant_type")
        if kind is not None and isinstance(kind, ast.Constant) and kind.value not in ("nf4", "fp4"):
            yield finding(
                "quantization-argument",
                kind,
                'bnb_4bit_quant_type is "nf4" or "fp4", not %r' % (kind.value,),
            )
        if (
            not on
            and any(k.arg and k.arg.startswith("bnb_4bit") for k in call.keywords)
            and not any(k.arg is None for k in call.keywords)
            and keyword(call, "load_in_4bit") is None
        ):
            yield finding(
                "quantization-argument",
                call,
                "bnb_4bit options without load_in_4bit=True: nothing is quantized",
            )


CHECKS = (check,)
