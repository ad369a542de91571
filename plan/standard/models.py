"""Which class a configuration stands for, and the model made from it."""

from __future__ import annotations

import copy
import difflib
import importlib.util
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

# Tasks in the order in which a configuration without `architectures` is trained.
TASKS = (
    "IMAGE_TEXT_TO_TEXT",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "CAUSAL_LM",
    "CTC",
    "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "UNIVERSAL_SEGMENTATION",
    "INSTANCE_SEGMENTATION",
    "IMAGE_SEGMENTATION",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "TIME_SERIES_PREDICTION",
    "TIME_SERIES_REGRESSION",
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "PRETRAINING",
    "MULTIMODAL_LM",
    "MASK_GENERATION",
    "TEXT_TO_SPECTROGRAM",
    "TEXT_TO_WAVEFORM",
    "IMAGE_TO_IMAGE",
    "MASKED_IMAGE_MODELING",
    "VISUAL_QUESTION_ANSWERING",
    "DOCUMENT_QUESTION_ANSWERING",
)


HEADS = 4  # that are tried in turn


class Unbuildable(Exception):
    """The library has no such model; says why."""


def read(path: str) -> dict[str, Any]:
    """The configuration's JSON, of a file or of the folder that holds it."""
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    with open(path, encoding="utf-8") as file:
        answer: dict[str, Any] = json.load(file)
        return answer


def classes_of(values: dict[str, Any], transformers: Any) -> list[type[PreTrainedModel]]:
    """The model classes that a configuration names, or that fit its type: the best first."""
    for name in values.get("architectures") or ():
        found = getattr(transformers, name, None)
        if found is not None and hasattr(found, "forward"):
            return [found]
    kind = values.get("model_type")
    from transformers.models.auto import modeling_auto

    tables = ["MODEL_FOR_%s_MAPPING_NAMES" % task for task in TASKS]
    tables += sorted(n for n in dir(modeling_auto) if n.startswith("MODEL_FOR_") and "NAMES" in n)
    classes = []
    for table in tables + ["MODEL_MAPPING_NAMES"]:
        name = getattr(modeling_auto, table, {}).get(kind)
        for one in [name] if isinstance(name, str) else name or ():
            found = getattr(transformers, one, None)
            if found is not None and hasattr(found, "forward") and reads(found, kind):
                classes.append(found)
    if not classes:
        raise Unbuildable(
            "transformers %s has no model of type %r: is it a newer one, or one with code of its "
            "own?" % (transformers.__version__, kind)
        )
    return list(dict.fromkeys(classes))


def reads(found: type[PreTrainedModel], kind: str | None) -> bool:
    """Whether a class is for configurations of this type: some tables name the class of a part."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    wanted = getattr(found, "config_class", None)
    return not isinstance(wanted, type) or issubclass(CONFIG_MAPPING[kind], wanted)


def make(values: dict[str, Any], spec: dict[str, Any], torch: Any) -> torch.nn.Module:
    """The model on the host, from its configuration: the weights are never read."""
    if "_class_name" in values:
        return make_diffuser(values, torch)
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = values.get("model_type")
    if kind not in CONFIG_MAPPING:
        near = difflib.get_close_matches(str(kind), list(CONFIG_MAPPING.keys()), 1)
        raise Unbuildable(
            "transformers %s does not know the type %r%s"
            % (transformers.__version__, kind, ", did you mean %r?" % near[0] if near else "")
        )
    try:
        config = CONFIG_MAPPING[kind].from_dict(copy.deepcopy(values))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as e:
        raise Unbuildable("the configuration cannot be read: %s" % error_text(e)) from e
    quiet(config)
    found = classes_of(values, transformers)
    own_backbone(config, transformers)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec["precision"], torch.float32)
    if spec.get("load_in"):  # what is not packed is in half precision
        dtype = torch.float16 if spec["precision"].endswith("fp16") else torch.bfloat16
    attempts = [{"attn_implementation": spec["attn"]}, {}] if spec.get("attn") else [{}]
    wrong = (ValueError, ImportError, NotImplementedError, TypeError, AttributeError, KeyError)
    errors = []
    # a head may want more than the configuration says, or a library that is not there
    heads = [*found[:HEADS], base_of(kind, transformers)]
    for one in [c for c in heads if hasattr(c, "_from_config")]:
        for how in attempts:
            try:
                # a copy: an attempt that fails leaves its choice of attention in the configuration
                model = one._from_config(copy.deepcopy(config), dtype=dtype, **how)
                return trained_part(model, spec, torch)
            except wrong as e:
                errors.append(error_text(e))
    missing = [e for e in errors if e.startswith("ImportError")]
    error = (missing or errors[len(attempts) - 1 :])[0]  # without a wish for its attention
    reading = language_model(config, transformers, dtype) if missing else None
    if reading is not None:
        spec.setdefault("notes", []).append(
            "%s; only its language model was rehearsed" % error.split(": ", 1)[1].split(" but")[0]
        )
        return reading
    raise Unbuildable("%s cannot be built: %s" % (found[0].__name__, error))


def trained_part(model: PreTrainedModel, spec: dict[str, Any], torch: Any) -> torch.nn.Module:
    """A model that only joins others has no forward pass: the part that is trained is the largest
    one that has.
    """
    if type(model).forward is not torch.nn.Module.forward:
        return model
    parts = [
        (sum(p.numel() for p in part.parameters()), name, part)
        for name, part in model.named_children()
        if hasattr(part, "config") and type(part).forward is not torch.nn.Module.forward
    ]
    if not parts:
        raise Unbuildable("%s has no forward pass" % type(model).__name__)
    _, name, part = max(parts, key=lambda p: p[0])
    spec.setdefault("notes", []).append(
        "%s has no forward pass of its own: only its part %s was rehearsed"
        % (type(model).__name__, name)
    )
    return part


def language_model(
    config: PretrainedConfig, transformers: Any, dtype: torch.dtype
) -> PreTrainedModel | None:
    """The part that reads and writes, of a model whose other parts need a missing library."""
    from transformers.models.auto import modeling_auto

    for part in parts_of(config)[1:]:
        name = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(getattr(part, "model_type", ""))
        if isinstance(name, str):
            try:
                return getattr(transformers, name)._from_config(copy.deepcopy(part), dtype=dtype)
            except (ValueError, ImportError, TypeError, AttributeError, KeyError):
                continue
    return None


def error_text(e: Exception) -> str:
    lines = [line for line in str(e).split("\n") if line.strip()]
    return "%s: %.300s" % (type(e).__name__, lines[0] if lines else "")


def base_of(kind: str | None, transformers: Any) -> Any:
    """The model without a head: a head may need a library that is not there."""
    from transformers.models.auto import modeling_auto

    name = modeling_auto.MODEL_MAPPING_NAMES.get(kind)
    name = name if isinstance(name, str) else name[0] if name else "AutoModel"
    return getattr(transformers, name)


def own_backbone(config: PretrainedConfig, transformers: Any) -> None:
    """Where timm is missing, transformers' own ResNet or Swin stands for a backbone of timm."""
    if importlib.util.find_spec("timm") is not None:
        return
    for part in parts_of(config):
        inner = getattr(part, "backbone_config", None)
        if getattr(inner, "model_type", "") == "timm_backbone":
            stages = ["stage%d" % i for i in (getattr(inner, "out_indices", None) or [4])]
            part.backbone_config = transformers.ResNetConfig(out_features=stages)
            if "swin" in str(getattr(inner, "backbone", "")):
                part.backbone_config = transformers.SwinConfig(out_features=stages)
            if hasattr(part, "timm_kwargs"):
                part.timm_kwargs = {}


def quiet(config: PretrainedConfig) -> None:
    """Training keeps no cache, and outputs are structures. No layer is left out by chance: most
    steps of such models leave out none, and those need the most.
    """
    for part in parts_of(config):
        for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
            if getattr(part, name, 0):
                setattr(part, name, 0.0)
        if hasattr(part, "use_cache"):
            part.use_cache = False
        if getattr(part, "use_pretrained_backbone", False):
            part.use_pretrained_backbone = False
        if getattr(part, "is_encoder_decoder", False):  # labels are shifted behind this token
            if getattr(part, "decoder_start_token_id", None) is None:
                part.decoder_start_token_id = getattr(part, "pad_token_id", None) or 0
        size, pad = getattr(part, "vocab_size", None), getattr(part, "pad_token_id", None)
        if isinstance(size, int) and isinstance(pad, int) and pad >= size:
            part.pad_token_id = None


def parts_of(config: Any) -> list[Any]:
    """A configuration and those inside it."""
    found, seen = [config], {id(config)}
    for part in found:
        for value in list(vars(part).values()):
            if hasattr(value, "to_dict") and hasattr(value, "model_type") and id(value) not in seen:
                seen.add(id(value))
                found.append(value)
    return found


def make_diffuser(values: dict[str, Any], torch: Any) -> torch.nn.Module:
    import diffusers

    found = getattr(diffusers, values["_class_name"], None)
    if found is None or not hasattr(found, "from_config"):
        raise Unbuildable(
            "diffusers %s has no model %s" % (diffusers.__version__, values["_class_name"])
        )
    return found.from_config(values)
