"""Are memroom.estimate and `memroom plan --rehearse` of the same code equal, byte for byte?

    python bench/guard/models.py --memroom bin/memroom [NAME...]

Each model is estimated in two ways in one process (the model and a sample; the training function)
and rehearsed as a script of its own. The last line compares the processor time of three steps on
the host with that of estimating them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any, Callable

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
Made = tuple[nn.Module, Any]


def seen(name: str, *shape: int, **more: Any) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **more), torch.zeros(*shape)

    return make


def spoken(kind: str, shape: tuple[int, int] = (4, 64), **more: Any) -> Callable[[], Made]:
    """A small model of transformers with the head that gives a loss."""

    def make() -> Made:
        import transformers

        config = getattr(transformers, kind + "Config")(**more)
        head = {
            "Bert": "ForMaskedLM",
            "Roberta": "ForMaskedLM",
            "DistilBert": "ForMaskedLM",
            "Electra": "ForMaskedLM",
            "T5": "ForConditionalGeneration",
            "Bart": "ForConditionalGeneration",
            "GPT2": "LMHeadModel",
        }.get(kind, "ForCausalLM")
        model = getattr(transformers, kind + head)(config)
        ids = torch.ones(shape, dtype=torch.int64)
        return model, {"input_ids": ids, "labels": ids}

    return make


class Last(nn.Module):
    """The output of a recurrent layer without its state."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, 256)
        self.head = nn.Linear(256, 5000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(128, 2000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(ids)))


def plain(make: Callable[[], nn.Module], *shape: int, kind: Any = None) -> Callable[[], Made]:
    return lambda: (make(), torch.zeros(*shape, dtype=kind))


small = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
decoder = dict(small, intermediate_size=256, vocab_size=1000, num_key_value_heads=2)
MODELS: dict[str, Callable[[], Made]] = {
    "linear": plain(lambda: nn.Linear(1024, 1024), 256, 1024),
    "mlp": plain(
        lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)), 128, 784
    ),
    "wide": plain(
        lambda: nn.Sequential(nn.Linear(256, 8192), nn.GELU(), nn.Linear(8192, 256)), 64, 256
    ),
    "dropout": plain(
        lambda: nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.1), nn.LayerNorm(512)), 64, 512
    ),
    "convolution": plain(
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()), 8, 3, 64, 64
    ),
    "conv1d": plain(lambda: nn.Sequential(nn.Conv1d(16, 64, 5), nn.SiLU()), 8, 16, 400),
    "lstm": plain(lambda: Last(nn.LSTM(64, 128, 2, batch_first=True)), 16, 50, 64),
    "gru": plain(lambda: Last(nn.GRU(64, 128, batch_first=True)), 16, 50, 64),
    "tied": plain(Tied, 8, 64, kind=torch.int64),
    "encoder": plain(Words, 8, 64, kind=torch.int64),
    "groups": plain(
        lambda: nn.Sequential(nn.Conv2d(32, 32, 3, groups=32), nn.GroupNorm(4, 32)), 8, 32, 32, 32
    ),
    "resnet18": seen("resnet18", 8, 3, 64, 64),
    "resnet50": seen("resnet50", 4, 3, 64, 64),
    "mobilenet_v2": seen("mobilenet_v2", 8, 3, 64, 64),
    "mobilenet_v3_small": seen("mobilenet_v3_small", 8, 3, 64, 64),
    "efficientnet_b0": seen("efficientnet_b0", 4, 3, 64, 64),
    "densenet121": seen("densenet121", 4, 3, 64, 64),
    "squeezenet1_1": seen("squeezenet1_1", 8, 3, 64, 64),
    "shufflenet_v2_x0_5": seen("shufflenet_v2_x0_5", 8, 3, 64, 64),
    "regnet_y_400mf": seen("regnet_y_400mf", 4, 3, 64, 64),
    "convnext_tiny": seen("convnext_tiny", 2, 3, 64, 64),
    "vit_b_16": seen("vit_b_16", 1, 3, 224, 224),
    "swin_t": seen("swin_t", 2, 3, 64, 64),
    "gpt2": spoken("GPT2", n_embd=128, n_layer=2, n_head=4, vocab_size=1000),
    "bert": spoken("Bert", **small, intermediate_size=256, vocab_size=1000),
    "roberta": spoken("Roberta", **small, intermediate_size=256, vocab_size=1000),
    "distilbert": spoken("DistilBert", dim=128, n_layers=2, n_heads=4, vocab_size=1000),
    "llama": spoken("Llama", **decoder),
    "qwen2": spoken("Qwen2", **decoder),
    "mistral": spoken("Mistral", **decoder),
    "t5": spoken(
        "T5",
        d_model=128,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        vocab_size=1000,
        decoder_start_token_id=0,
    ),
    "bart": spoken(
        "Bart",
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        vocab_size=1000,
    ),
}


def train(model: nn.Module, sample: Any, device: str, steps: int = 3) -> None:
    model.to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(steps):
        if isinstance(sample, dict):
            batch = {name: t.to(device) for name, t in sample.items()}
            loss = model(**batch).loss
        else:
            batch = sample.to(device)
            loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def script(name: str) -> None:
    torch.manual_seed(0)
    model, sample = MODELS[name]()
    train(model, sample, "cuda")


def of_rehearsal(memroom: str, name: str, gpu: str) -> tuple[int, int, int]:
    line = [memroom, "plan", "--rehearse", "--json", "--gpu", gpu, "--", sys.executable, __file__]
    done = subprocess.run([*line, "--script", name], capture_output=True, text=True, timeout=600)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr[-500:])
    p = json.loads(done.stdout)
    return p["allocated_peak"], p["reserved_peak"], p["device_peak"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--gpu", default="RTX4090")
    parser.add_argument("--script")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if asked.script:
        script(asked.script)
        return
    os.environ["MEMROOM_BINARY"] = os.path.abspath(asked.memroom)
    sys.path.insert(0, os.path.join(HERE, os.pardir, os.pardir, "python"))
    import memroom

    equal, host, rehearsed = 0, 0.0, 0.0
    names = asked.names or list(MODELS)
    for name in names:
        model, sample = MODELS[name]()
        want = of_rehearsal(asked.memroom, name, asked.gpu)
        begun = sum(os.times()[:4])  # processor time, with that of children
        first = memroom.estimate(model, sample, "AdamW", gpu=asked.gpu)
        middle = sum(os.times()[:4])
        train(model, sample, "cpu")
        host, rehearsed = host + sum(os.times()[:4]) - middle, rehearsed + middle - begun
        ways = [
            first,
            memroom.estimate(lambda name=name: script(name), gpu=asked.gpu),
        ]
        got = [(e.allocated, e.reserved, e.device) for e in ways]
        same = all(way == want for way in got)
        equal += same
        says = "equal" if same else "DIFFERS: %s instead of %s" % (got, want)
        print("%-20s %12d allocated %12d device  %s" % (name, want[0], want[2], says), flush=True)
    print("%d of %d models equal to plan --rehearse, byte for byte" % (equal, len(names)))
    print(
        "three steps of all, processor time: %.1f s on the host, %.1f s estimated"
        % (host, rehearsed)
    )


if __name__ == "__main__":
    main()
