"""A batch of the right form for a model, from its configuration and the signature of its forward
pass.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

from . import models

if TYPE_CHECKING:
    import torch

FRAMES = 8  # of a video, where the configuration does not say
OBJECTS = 4  # to detect or to segment, in an image
HEARD = 16000  # samples of sound, where no length is given
SHORTEST = 16000  # samples that the convolutions before a speech model need


# What a model may be called without and nobody trains it without.
ALWAYS = ("bbox", "visual_feats", "visual_pos")


# Models that take [batch, bins, frames] of sound, by a part of their names.
BINS_FIRST = ("Whisper", "Moonshine", "Audio", "Omni", "Voxtral", "Glm", "Flamingo", "Qwen3ASR")


class Batch:
    """Makes inputs. `seq` and `image` are what the user asked for; 0 is the model's own."""

    def __init__(self, model: torch.nn.Module, spec: dict[str, Any], torch: Any) -> None:
        self.model, self.config, self.torch = model, getattr(model, "config", None), torch
        self.size: int = spec["batch"]
        self.seq: int = spec.get("seq") or 0
        self.image: int = spec.get("image") or 0
        self.takes = inspect.signature(model.forward).parameters
        self.name = type(model).__name__
        self.device = "cpu"
        # of images, where other ones than the configuration's must be tried
        self.sides: tuple[int, int] | None = None
        # where the weights are in half precision and nothing casts, so are images and sound
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}
        self.float: torch.dtype = half.get(spec.get("precision", ""), torch.float32)
        self.configs = models.parts_of(self.config) if self.config is not None else []

    # -- what the configuration says

    def find(self, *names: str, among: list[Any] | None = None, default: int = 0) -> int:
        """The first number above 0 of one of these names, in the configuration or those inside
        it.
        """
        for part in among or self.configs:
            for name in names:
                value = getattr(part, name, None)
                if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                    value = value[0]
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return default

    def seeing(self) -> list[Any]:
        """The configurations of the part that sees, before all others."""
        first = [c for c in self.configs if "vision" in type(c).__name__.lower()]
        return first + [c for c in self.configs if c not in first]

    def reading(self) -> list[Any]:
        first = [c for c in self.configs if "text" in type(c).__name__.lower()]
        return first + [c for c in self.configs if c not in first]

    def length(self) -> int:
        most = self.find(
            "max_position_embeddings",
            "n_positions",
            "max_source_positions",
            "context_length",
            "max_length",
            "max_seq_len",
            among=self.reading(),
            default=1024,
        )
        offset = (
            2 if self.find("pad_token_id") == 1 and most % 2 == 0 and "obert" in self.name else 0
        )
        axes = getattr(self.config, "axial_pos_shape", None)
        if isinstance(axes, (list, tuple)) and getattr(self.config, "axial_pos_embds", False):
            answer: int = axes[0] * axes[1]  # Reformer trains at this length only
            return answer
        return min(self.seq or 1024, max(8, most - offset))

    def side(self) -> int:
        if self.image:
            return self.image
        if self.sides:
            return self.sides[0]
        for part in self.seeing():
            size = getattr(part, "image_size", None)
            if isinstance(size, dict):
                size = size.get("height") or size.get("longest_edge")
            if isinstance(size, (list, tuple)) and size:
                size = size[0]
            if isinstance(size, int) and size > 0:
                return size
        return 640 if "Detection" in self.name else 224

    # -- tensors

    def ints(self, high: int, *shape: int) -> torch.Tensor:
        return self.torch.randint(0, max(2, high), shape).to(self.device)

    def floats(self, *shape: int) -> torch.Tensor:
        return self.torch.randn(shape).to(self.float).to(self.device)

    def ids(self, length: int | None = None) -> torch.Tensor:
        return self.host_ids(length or self.length()).to(self.device)

    def host_ids(self, length: int) -> torch.Tensor:
        """Words that no special token is among, where the vocabulary has room for that."""
        vocabulary = self.find("vocab_size", among=self.reading(), default=1000)
        low = 10 if vocabulary > 20 else 0
        return self.torch.randint(low, max(low + 2, min(vocabulary, 1000)), (self.size, length))

    def pixels(self) -> torch.Tensor:
        channels = self.find(
            "num_channels", "in_channels", "in_chans", among=self.seeing(), default=3
        )
        high = self.side()
        wide = high if self.image else self.width(high)
        if self.sees_video():
            frames = self.find("num_frames", "frames", default=FRAMES)
            return self.floats(self.size, frames, channels, high, wide)
        return self.floats(self.size, channels, high, wide)

    def width(self, high: int) -> int:
        """The other side of an image that is no square (people standing, spectrograms)."""
        if self.sides:
            return self.sides[1]
        for part in self.seeing():
            size = getattr(part, "image_size", None)
            if isinstance(size, (list, tuple)) and len(size) == 2 and size[0] == high:
                answer: int = size[1]
                return answer
        return high

    def sees_video(self) -> bool:
        return any(
            w in self.name.lower() for w in ("video", "vivit", "timesformer", "xclip", "tvp")
        )

    def patches(self) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Images cut into patches, with the grid they come from (Qwen's way)."""
        part = self.seeing()[0]
        patch = self.find("patch_size", among=[part], default=14)
        time = self.find("temporal_patch_size", among=[part], default=1)
        merge = self.find("spatial_merge_size", "merge_size", among=[part], default=2)
        channels = self.find("in_channels", "in_chans", "num_channels", among=[part], default=3)
        side = max(patch * merge, (self.image or 224) // (patch * merge) * patch * merge)
        grid = side // patch
        pixels = self.floats(self.size * grid * grid, channels * time * patch * patch)
        sizes = self.torch.tensor([[1, grid, grid]] * self.size).to(self.device)
        return pixels, sizes, grid * grid // (merge * merge)

    def padded_patches(self) -> dict[str, Callable[[], torch.Tensor]]:
        """Patches with the grid of each image, as many as the model has positions for."""
        part, n, torch = self.seeing()[0], self.size, self.torch
        patch = self.find("patch_size", among=[part], default=16)
        side = int(self.find("num_patches", among=[part], default=256) ** 0.5)
        if self.image:
            side = max(1, self.image // patch)
        width = self.find("num_channels", among=[part], default=3) * patch * patch
        return {
            "pixel_values": lambda: self.floats(n, side * side, width),
            "pixel_attention_mask": lambda: torch.ones((n, side * side), dtype=torch.int32).to(
                self.device
            ),
            "spatial_shapes": lambda: torch.tensor([[side, side]] * n).to(self.device),
        }

    def sound(self) -> torch.Tensor:
        """Features of sound: [batch, bins, frames] or [batch, frames, bins]."""
        bins = self.find(
            "feature_projection_input_dim",
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "input_dim",
            default=80,
        )
        frames = 2 * self.find("max_source_positions", default=1500)
        if "is_longer" in self.takes:  # ten seconds, one channel
            return self.floats(self.size, 1, 1001, bins)
        if self.bins_first():
            return self.floats(self.size, bins, min(frames, 3000))
        return self.floats(self.size, min(max(self.seq, 200) if self.seq else 1000, frames), bins)

    def waves(self) -> torch.Tensor:
        if "mel" in " ".join(vars(self.config)) and not hasattr(self.config, "conv_dim"):
            length = self.find("max_length", "spec_size", default=1024)
            bins = self.find("num_mel_bins", default=128)
            return self.floats(self.size, length, bins)
        one = self.find("audio_channels", default=0) or "Codec" in self.name or "Dac" in self.name
        length = max(self.seq, SHORTEST) if self.seq else HEARD
        return self.floats(self.size, 1, length) if one else self.floats(self.size, length)

    def series(self) -> torch.Tensor:
        length = self.find("context_length", "prompt_length", "prediction_length", default=32)
        channels = self.find("num_input_channels", "input_size", default=1)
        return self.floats(self.size, length, channels)

    # -- the whole batch

    def arguments(self, labelled: bool = False) -> dict[str, Any]:
        """What the forward pass is called with, without labels; with them a decoder's input is made
        from them.
        """
        made = {}
        for name, maker in self.makers().items():
            wanted = self.takes.get(name)
            if wanted is not None and (
                wanted.default is inspect.Parameter.empty
                or self.main(name)
                or name in ("spatial_shapes", "pixel_attention_mask")
                and "spatial_shapes" in self.takes
            ):
                made[name] = maker()
        if "inputs_embeds" in made and "input_ids" in made:
            del made["inputs_embeds"]
        if (
            getattr(self.config, "is_encoder_decoder", False)
            and "decoder_input_ids" in self.takes
            and not (labelled and "labels" in self.takes)
        ):
            made.setdefault("decoder_input_ids", self.ids(min(self.length(), 64)))
        return made

    def main(self, name: str) -> bool:
        """Whether an argument that may be left out is what the model is for."""
        said = getattr(self.model, "main_input_name", "input_ids")
        if name == said:
            return True
        needed = {
            "input_ids",
            "pixel_values",
            "bbox",
            "past_values",
            "input_features",
            "input_values",
        }
        if name in ALWAYS:
            return True
        if name == "input_ids":
            return said not in ("input_values", "pixel_values") or self.reads()
        if name == "pixel_values":
            return not self.talks_of_images()
        if name in ("input_features", "is_longer") and "is_longer" in self.takes:
            return True  # sound beside words (CLAP)
        return name in needed and name == said

    def reads(self) -> bool:
        return any("text" in type(c).__name__.lower() for c in self.configs)

    def talks_of_images(self) -> bool:
        """Whether images stand for tokens among others: losses.py puts those together."""
        return any(
            hasattr(c, n)
            for c in self.configs
            for n in ("image_token_id", "image_token_index", "vision_start_token_id", "image_token")
        )

    def talks_of_sound(self) -> bool:
        """Whether sound stands for tokens among others."""
        return "input_ids" in self.takes and any(
            hasattr(owner, "get_audio_features")
            for owner in (self.model, getattr(self.model, "model", None))
        )

    def heard(self, listen: Callable[..., Any], model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """What the part that listens is called with, by the names that it has for it."""
        names = set(inspect.signature(listen).parameters) | set(self.takes)
        features = self.sound() if "input_features" in names else self.waves()
        given = {"input_features" if "input_features" in names else "input_values": features}
        frames = features.shape[-1] if self.bins_first() else features.shape[1]
        full = self.torch.ones((self.size, frames), dtype=self.torch.long).to(self.device)
        for name in ("feature_attention_mask", "input_features_mask", "padding_mask"):
            if name in names:
                given[name] = full
        if "audio_feature_lengths" in names and "feature_attention_mask" not in names:
            given["audio_feature_lengths"] = full.sum(-1)
        return given

    def bins_first(self) -> bool:
        return any(w in self.name for w in BINS_FIRST)

    def makers(self) -> dict[str, Callable[[], torch.Tensor]]:
        n, torch = self.size, self.torch
        if "spatial_shapes" in self.takes:  # patches of images of any shape, padded (SigLIP 2)
            return {"input_ids": self.ids, **self.padded_patches()}
        if "grid_thw" in self.takes:  # a tower of Qwen's kind by itself
            pixels, grid, _ = self.patches()
            first = next(iter(self.takes))
            return {first: lambda: pixels, "grid_thw": lambda: grid}
        return {
            "input_ids": self.ids,
            "pixel_values": self.pixels,
            "pixel_values_videos": self.pixels,
            "input_values": self.waves,
            "input_features": self.sound,
            "inputs_embeds": lambda: self.floats(
                n, self.length(), self.find("hidden_size", "d_model", default=64)
            ),
            "bbox": lambda: torch.zeros((n, self.length(), 4), dtype=torch.long).to(self.device),
            "past_values": self.series,
            "past_observed_mask": lambda: torch.ones_like(self.series()),
            "sample": self.sample,
            "hidden_states": self.sample,
            "timestep": lambda: self.ints(1000, n),
            "encoder_hidden_states": self.conditions,
            "pooled_projections": lambda: self.floats(
                n, self.find("pooled_projection_dim", default=768)
            ),
            "inputs": lambda: self.ids(),
            "input_features_mask": lambda: torch.ones(
                (n, self.sound().shape[1]), dtype=torch.bool
            ).to(self.device),
            "is_longer": lambda: torch.zeros((n, 1), dtype=torch.bool).to(self.device),
            "visual_feats": lambda: self.floats(n, 36, self.find("visual_feat_dim", default=2048)),
            "visual_pos": lambda: self.floats(n, 36, self.find("visual_pos_dim", default=4)),
            "qformer_input_ids": lambda: self.ids(32),
            "task_inputs": lambda: self.ids(77),
            "flattened_patches": lambda: self.floats(
                n, 256, 2 + 3 * self.find("patch_size", default=16) ** 2
            ),
            "audio_values": lambda: self.floats(n, 1, HEARD),
            "states": lambda: self.floats(n, 20, self.find("state_dim", default=17)),
            "actions": lambda: self.floats(n, 20, self.find("act_dim", default=4)),
            "rewards": lambda: self.floats(n, 20, 1),
            "returns_to_go": lambda: self.floats(n, 20, 1),
            "timesteps": lambda: self.ints(20, n, 20),
        }

    def sample(self) -> torch.Tensor:
        """Noise for a diffusion model."""
        side = self.image or self.find("sample_size", default=64)
        channels = self.find("in_channels", default=4)
        return self.floats(self.size, channels, side, side)

    def conditions(self) -> torch.Tensor:
        width = self.find(
            "cross_attention_dim", "joint_attention_dim", "caption_channels", default=768
        )
        return self.floats(self.size, min(self.seq or 77, 512), width)
