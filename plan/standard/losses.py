"""What a standard step minimises: the model's own loss with labels of the right form where it has
one, else the mean of what it returns. loop.py tries the ways in turn.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

from . import inputs

if TYPE_CHECKING:
    import torch

OBJECTS = inputs.OBJECTS


MEAN = "the mean of the outputs stands for the loss"


class Way:
    """One way of calling a model: `call` gives the loss, `says` what is left out, if anything."""

    def __init__(self, call: Callable[[], torch.Tensor], says: str = "") -> None:
        self.call, self.says = call, says


def ways(model: torch.nn.Module, batch: inputs.Batch) -> list[Way]:
    """The ways to train this model, the most faithful first."""
    found = []
    if batch.talks_of_images():
        if "image_grid_thw" in batch.takes:
            found.append(Way(lambda: with_patches(model, batch)))
        found.append(Way(lambda: with_images(model, batch, sized=False)))
        if "image_sizes" in batch.takes:
            found.append(Way(lambda: with_images(model, batch, sized=True)))
        found.append(Way(lambda: beside_images(model, batch), "image tokens are counted as words"))
    if batch.talks_of_sound():
        found.append(Way(lambda: with_sound(model, batch)))
        found.append(Way(lambda: beside_sound(model, batch), "tokens of sound count as words"))
    found += [
        Way(lambda: labelled(model, batch)),
        Way(
            lambda: returned(model, batch, batch.arguments()),
            MEAN,
        ),
        Way(
            lambda: returned(model, batch, bare(batch)),
            MEAN,
        ),
    ]
    if "pixel_values" in batch.takes:
        found += other_images(model, batch)
    if "past_values" in batch.takes:
        found.append(Way(lambda: one_series(model, batch), MEAN))
    for part in parts_with_inputs(model):
        found.append(
            Way(
                functools.partial(of_part, model, batch, part),
                "only %s was rehearsed: weights of other parts are there, their activations are not"
                % part,
            )
        )
    return found


# Sides of images that models were made for whose configuration does not say so: lines of text,
# documents, photographs.
SIDES = ((48, 320), (640, 640), (512, 512), (384, 384), (256, 256), (1024, 1024))


def other_images(model: torch.nn.Module, batch: inputs.Batch) -> list[Way]:
    """Ways with images that the configuration does not speak of."""
    found = [
        Way(lambda: stacked(model, batch, 1), "each sample has one image"),
        Way(lambda: returned(model, batch, many(batch, 2)), "each sample is two images; " + MEAN),
    ]
    for sides in () if batch.image else SIDES:
        found.append(
            Way(
                functools.partial(sized, model, batch, sides),
                "images of %d x %d were taken; %s" % (*sides, MEAN),
            )
        )
    return found


def many(batch: inputs.Batch, count: int) -> dict[str, Any]:
    """Inputs with several images a sample."""
    arguments = batch.arguments()
    pixels = batch.pixels()
    arguments["pixel_values"] = batch.torch.stack([pixels] * count, dim=1)
    return arguments


def stacked(model: torch.nn.Module, batch: inputs.Batch, count: int) -> torch.Tensor:
    arguments = many(batch, count)
    if "image_attention_mask" in batch.takes:
        shape = (batch.size, arguments["input_ids"].shape[1], count)
        arguments["image_attention_mask"] = batch.torch.ones(shape).to(batch.device)
    arguments.update(labels_for(batch, arguments))
    return loss_of(model(**arguments), batch)


def sized(model: torch.nn.Module, batch: inputs.Batch, sides: tuple[int, int]) -> torch.Tensor:
    batch.sides = sides
    try:
        return returned(model, batch, batch.arguments())
    finally:
        batch.sides = None


def parts_with_inputs(model: torch.nn.Module) -> list[str]:
    """Names of parts that may be rehearsed alone: the usual ones, then others, largest first."""
    usual = ["vision_tower", "vision_model", "visual", "language_model", "encoder"]
    others = [
        (sum(p.numel() for p in part.parameters()), name)
        for name, part in model.named_children()
        if hasattr(part, "config") and name not in usual
    ]
    return usual + [name for _, name in sorted(others, reverse=True)][:3]


def one_series(model: torch.nn.Module, batch: inputs.Batch) -> torch.Tensor:
    """A series without channels."""
    length = max(batch.find("context_length", default=32), 32)
    return returned(model, batch, {"past_values": batch.floats(batch.size, length)})


def bare(batch: inputs.Batch) -> dict[str, torch.Tensor]:
    """The main input alone."""
    name = getattr(batch.model, "main_input_name", "input_ids")
    maker = batch.makers().get(name)
    if maker is None:
        raise ValueError("no input is known for %s" % batch.name)
    return {name: maker()}


def labelled(model: torch.nn.Module, batch: inputs.Batch) -> torch.Tensor:
    arguments = batch.arguments(labelled=True)
    arguments.update(labels_for(batch, arguments))
    return loss_of(model(**arguments), batch)


def returned(
    model: torch.nn.Module, batch: inputs.Batch, arguments: dict[str, Any]
) -> torch.Tensor:
    return mean_of(model(**arguments), batch)


def with_patches(model: torch.nn.Module, batch: inputs.Batch) -> torch.Tensor:
    """Images as patches with their grid, their places among the words marked."""
    pixels, grid, tokens = batch.patches()
    ids = mark(batch, tokens)
    arguments = {"input_ids": ids, "labels": ids, "pixel_values": pixels, "image_grid_thw": grid}
    if "mm_token_type_ids" in batch.takes:
        arguments["mm_token_type_ids"] = (ids == image_token(batch)).long()
    return loss_of(model(**arguments), batch)


def with_images(model: torch.nn.Module, batch: inputs.Batch, sized: bool) -> torch.Tensor:
    pixels = batch.pixels()
    sizes = sizes_for(batch) if sized else {}
    tokens = tokens_of(model, batch, pixels, sizes)
    ids = mark(batch, tokens)
    arguments = {"input_ids": ids, "pixel_values": pixels}
    if "labels" in batch.takes:
        arguments["labels"] = ids
    if "token_type_ids" in batch.takes:
        arguments["token_type_ids"] = (ids == image_token(batch)).long()
    arguments.update(sizes)
    return loss_of(model(**arguments), batch)


def sizes_for(batch: inputs.Batch) -> dict[str, torch.Tensor]:
    side = batch.side()
    return {"image_sizes": batch.torch.tensor([[side, side]] * batch.size).to(batch.device)}


def tokens_of(
    model: torch.nn.Module,
    batch: inputs.Batch,
    pixels: torch.Tensor,
    sizes: dict[str, torch.Tensor],
) -> int:
    """How many tokens an image becomes."""
    return count_of(features_of(model, pixels, sizes), batch)


def count_of(features: object, batch: inputs.Batch) -> int:
    """How many tokens features are, a sample."""
    listed = isinstance(features, (list, tuple))  # one entry an image, or one for all of them
    count = 0
    for t in tensors_in(features):
        if t.dim() >= 2 and t.dtype.is_floating_point:
            count += t.numel() // t.shape[-1]
            if not listed:
                break
    count //= batch.size
    if count < 1:
        raise ValueError("no features")
    return count


def features_of(
    model: torch.nn.Module, pixels: torch.Tensor, sizes: dict[str, torch.Tensor]
) -> Any:
    for owner in (model, getattr(model, "model", None)):
        if owner is not None and hasattr(owner, "get_image_features"):
            out = owner.get_image_features(pixel_values=pixels, **sizes)
            pooled = getattr(out, "pooler_output", None)
            return pooled if pooled is not None else out
    raise ValueError("no features of images")


def beside_images(model: torch.nn.Module, batch: inputs.Batch) -> torch.Tensor:
    """The words' loss and the mean of the images' features: the same towers, run beside each
    other.
    """
    ids = batch.ids()
    arguments = {"input_ids": ids}
    if "labels" in batch.takes:
        arguments["labels"] = ids
    loss = loss_of(model(**arguments), batch)
    if "image_grid_thw" in batch.takes:
        pixels, grid, _ = batch.patches()
        tower = next(
            getattr(o, n)
            for o in (getattr(model, "model", None), model)
            for n in ("visual", "vision_tower", "vision_model")
            if o is not None and hasattr(o, n)
        )
        return loss + mean_of(tower(pixels.to(first_type(tower)), grid), batch)
    pixels = batch.pixels()
    try:
        return loss + mean_of(features_of(model, pixels, {}), batch)
    except Exception:
        for part in ("vision_tower", "vision_model", "visual"):
            if any(hasattr(o, part) for o in (model, getattr(model, "model", None))):
                return loss + of_part(model, batch, part)
        raise


def sound_of(model: torch.nn.Module, batch: inputs.Batch) -> tuple[Any, dict[str, torch.Tensor]]:
    """The features of sound, and what they were made from."""
    for owner in (model, getattr(model, "model", None)):
        if owner is not None and hasattr(owner, "get_audio_features"):
            given = batch.heard(owner.get_audio_features, model)
            out = owner.get_audio_features(**given)
            pooled = getattr(out, "pooler_output", None)
            return pooled if pooled is not None else out, given
    raise ValueError("no features of sound")


def with_sound(model: torch.nn.Module, batch: inputs.Batch) -> torch.Tensor:
    """Sound among the words, its places marked."""
    features, given = sound_of(model, batch)
    tokens = count_of(features, batch)
    ids = mark(batch, tokens, AUDIO_TOKENS)
    arguments = {"input_ids": ids, **{k: v for k, v in given.items() if k in batch.takes}}
    if "attention_mask" in batch.takes:
        arguments["attention_mask"] = batch.torch.ones_like(ids)
    if "labels" in batch.takes:
        arguments["labels"] = ids
    return loss_of(model(**arguments), batch)


def beside_sound(model: torch.nn.Module, batch: inputs.Batch) -> torch.Tensor:
    ids = batch.ids()
    arguments = {"input_ids": ids}
    if "labels" in batch.takes:
        arguments["labels"] = ids
    features, _ = sound_of(model, batch)
    return loss_of(model(**arguments), batch) + mean_of(features, batch)


def first_type(module: torch.nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def of_part(model: torch.nn.Module, batch: inputs.Batch, name: str) -> torch.Tensor:
    """The mean of what one part returns."""
    for owner in (model, getattr(model, "model", None)):
        part = getattr(owner, name, None)
        if part is None or not hasattr(part, "forward"):
            continue
        inner = inputs.Batch(
            part, {"batch": batch.size, "seq": batch.seq, "image": batch.image}, batch.torch
        )
        inner.device, inner.float = batch.device, batch.float
        inner.configs = inner.configs or batch.configs
        return mean_of(part(**inner.arguments()), batch)
    raise ValueError("no part %s" % name)


IMAGE_TOKENS = ("image_token_id", "image_token_index", "img_context_token_id")
AUDIO_TOKENS = ("audio_token_id", "audio_token_index")


def image_token(batch: inputs.Batch, names: tuple[str, ...] = IMAGE_TOKENS) -> int:
    for part in batch.configs:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, int):
                return value
    raise ValueError("no token stands for it")


def mark(batch: inputs.Batch, tokens: int, names: tuple[str, ...] = IMAGE_TOKENS) -> torch.Tensor:
    """Words, with the tokens that stand for an image or for sound behind the first."""
    rows = []
    for row in batch.host_ids(max(batch.length(), tokens + 8)).tolist():
        row[1 : 1 + tokens] = [image_token(batch, names)] * tokens
        rows.append(row)
    return batch.torch.tensor(rows).to(batch.device)


def labels_for(batch: inputs.Batch, arguments: dict[str, Any]) -> dict[str, Any]:
    """Labels of the form that the class wants, by its name."""
    takes, name, torch = batch.takes, batch.name, batch.torch
    if "start_positions" in takes:
        return {
            "start_positions": batch.ints(8, batch.size),
            "end_positions": batch.ints(8, batch.size),
        }
    if "spectrogram_labels" in takes:
        return speech(batch, arguments)
    if "mask_labels" in takes:
        return masks(batch)
    if "future_values" in takes:
        return {"future_values": batch.series()}
    if "labels" not in takes:
        return {"return_loss": True} if "return_loss" in takes else {}
    side = batch.side()
    if "Detection" in name or "ForSegmentation" in name or "TableRec" in name:
        one = {
            "class_labels": batch.ints(2, OBJECTS),
            "boxes": torch.rand((OBJECTS, 4)).to(batch.device) / 2,
        }
        if "ForSegmentation" in name:
            one["masks"] = torch.zeros((OBJECTS, side, side)).to(batch.device)
        return {"labels": [dict(one) for _ in range(batch.size)]}
    if "SemanticSegmentation" in name:
        return {"labels": batch.ints(2, batch.size, side, side)}
    if "ForCTC" in name:
        return {"labels": batch.ints(20, batch.size, 16)}
    if any(w in name for w in ("Classification", "XVector", "Regression")) and "Token" not in name:
        return {"labels": batch.ints(2, batch.size)}
    if "input_ids" in arguments and "MultipleChoice" not in name:
        words = arguments["input_ids"]
        if getattr(batch.config, "is_encoder_decoder", False):
            return {"labels": batch.ids()}
        return {"labels": words % 2 if "Token" in name else words}
    return {"labels": batch.ids(32)}


def speech(batch: inputs.Batch, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A spectrogram of two frames a sound, with the pitch and the energy of each sound."""
    n, length = arguments["input_ids"].shape
    bins = batch.find("num_mel_bins", default=80)
    found = {
        "spectrogram_labels": batch.floats(n, 2 * length, bins),
        "duration_labels": batch.torch.full((n, length), 2).to(batch.device),
        "pitch_labels": batch.floats(n, length, 1),
        "energy_labels": batch.floats(n, length, 1),
    }
    return {name: value for name, value in found.items() if name in batch.takes}


def masks(batch: inputs.Batch) -> dict[str, Any]:
    side = batch.side()
    mask = batch.torch.zeros((OBJECTS, side, side)).to(batch.device)
    classes = batch.ints(2, OBJECTS)
    found: dict[str, Any] = {
        "mask_labels": [mask] * batch.size,
        "class_labels": [classes] * batch.size,
    }
    if "task_inputs" in batch.takes:
        found["task_inputs"] = batch.ids(77)
    return found


def loss_of(out: Any, batch: inputs.Batch) -> torch.Tensor:
    loss = getattr(out, "loss", None)
    if loss is None and isinstance(out, dict):
        loss = out.get("loss")
    if loss is None:
        return mean_of(out, batch)
    return loss.float().mean() if loss.dim() else loss.float()


def mean_of(out: object, batch: inputs.Batch) -> torch.Tensor:
    """The sum of the means of all numbers that a gradient flows from."""
    total = None
    for t in tensors_in(out):
        if t.dtype.is_floating_point and t.requires_grad:
            part = t.float().mean()
            total = part if total is None else total + part
    if total is None:
        raise ValueError("%s returns nothing that can be trained" % batch.name)
    return total


def tensors_in(value: Any) -> list[torch.Tensor]:
    if hasattr(value, "dtype") and hasattr(value, "dim"):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    return []
