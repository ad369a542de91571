"""Loading of transformers' models in 8 or 4 bits, or spread over devices: added to from_pretrained
where it is not said.
"""

import functools
import importlib.util
from typing import Any, Callable, Dict


def quantized(bits: int) -> Callable[..., Any]:
    def install(params: Dict[Any, Any], say: Callable[..., Any]) -> None:
        id = "quantize_%dbit" % bits
        if importlib.util.find_spec("bitsandbytes") is None:
            raise RuntimeError("bitsandbytes is not installed")
        _around_from_pretrained(
            say,
            id,
            "quantization_config",
            lambda transformers: transformers.BitsAndBytesConfig(
                load_in_8bit=bits == 8, load_in_4bit=bits == 4
            ),
            "weights in %d bits" % bits,
        )

    return install


def device_map(params: Dict[Any, Any], say: Callable[..., Any]) -> None:
    if importlib.util.find_spec("accelerate") is None:
        raise RuntimeError("accelerate is not installed")
    _around_from_pretrained(
        say,
        "device_map",
        "device_map",
        lambda _: params.get("map", "auto"),
        "spread over devices (%s)" % params.get("map", "auto"),
    )


def _around_from_pretrained(
    say: Callable[..., Any], id: str, argument: str, value: Callable[..., Any], words: str
) -> None:
    from ... import imports

    def patch(*_: Any) -> None:
        import transformers

        kind = transformers.PreTrainedModel
        original = kind.from_pretrained.__func__

        @functools.wraps(original)
        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if argument in kwargs:
                say("declined", "the script says %s itself" % argument, id=id)
            else:
                kwargs[argument] = value(transformers)
                say(
                    "applied",
                    "%s: %s" % (cls.__name__, words),
                    id=id,
                    equivalence="changes" if "quantize" in id else "exact",
                )
            return original(cls, *args, **kwargs)

        kind.from_pretrained = classmethod(from_pretrained)

    imports.when_imported("transformers.modeling_utils", patch)
