"""Are memroom.estimate and `memroom plan --rehearse` of the same code equal, byte for byte?

    python bench/guard/models.py --memroom bin/memroom [NAME...]

Each model is estimated in two ways in one process (the model and a sample; the training function)
and rehearsed as a script of its own. The last lines compare what a test takes on the host with what
the same test takes rehearsed.

    python bench/guard/models.py --memroom bin/memroom --card

On a machine with a card: memroom.estimate of other models, beside what each of them takes there.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
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


large = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
larger = dict(large, intermediate_size=3072, vocab_size=32000)
LONG = (8, 512)
CARD: dict[str, Callable[[], Made]] = {
    "resnet34": seen("resnet34", 64, 3, 224, 224),
    "wide_resnet50_2": seen("wide_resnet50_2", 32, 3, 224, 224),
    "resnext50_32x4d": seen("resnext50_32x4d", 32, 3, 224, 224),
    "vgg16_bn": seen("vgg16_bn", 32, 3, 224, 224),
    "mnasnet1_0": seen("mnasnet1_0", 64, 3, 224, 224),
    "regnet_x_800mf": seen("regnet_x_800mf", 64, 3, 224, 224),
    "efficientnet_v2_s": seen("efficientnet_v2_s", 16, 3, 224, 224),
    "vit_b_32": seen("vit_b_32", 64, 3, 224, 224),
    "swin_v2_t": seen("swin_v2_t", 16, 3, 256, 256),
    "maxvit_t": seen("maxvit_t", 8, 3, 224, 224),
    "convnext_small": seen("convnext_small", 16, 3, 224, 224),
    "alexnet": seen("alexnet", 256, 3, 224, 224),
    "electra": spoken("Electra", LONG, **large, intermediate_size=3072),
    "phi": spoken("Phi", LONG, **larger),
    "gemma": spoken("Gemma", LONG, **larger, head_dim=64),
    "opt": spoken("OPT", LONG, **large, ffn_dim=3072, word_embed_proj_dim=768),
    "bloom": spoken("Bloom", LONG, hidden_size=768, n_layer=6, n_head=12, vocab_size=32000),
    "gpt_neox": spoken("GPTNeoX", LONG, **larger),
    "falcon": spoken("Falcon", LONG, **large, vocab_size=32000),
    "olmo": spoken("Olmo", LONG, **larger),
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
    model, sample = (MODELS | CARD)[name]()
    train(model, sample, "cuda")


def on_card(name: str) -> bool:
    """Prints what a model takes on the card and what is estimated."""
    import memroom

    line = [sys.executable, __file__, "--script", name, "--peaks"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    there = json.loads(done.stdout.splitlines()[-1])
    e = memroom.estimate(lambda: script(name), gpu="h200")
    apart = [e.allocated / there[0] - 1, e.reserved / there[1] - 1]
    print(
        "%-20s %12d allocated %12d reserved on the card; estimated %+.2f %% and %+.2f %%"
        % (name, *there, *(100 * a for a in apart)),
        flush=True,
    )
    return max(map(abs, apart)) <= 0.01


def all_on_card(memroom: str, names: list[str]) -> None:
    """Each model in a process of its own, some at a time: an estimate forks."""
    line = [sys.executable, __file__, "--memroom", memroom, "--card"]

    def ends(name: str) -> int:
        return subprocess.call([*line, name])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        good = list(pool.map(ends, names)).count(0)
    print("%d of %d models within 1 %% of the card" % (good, len(names)))


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
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--card", action="store_true")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if asked.script:
        script(asked.script)
        if asked.peaks:
            print([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
        return
    os.environ["MEMROOM_BINARY"] = os.path.abspath(asked.memroom)
    sys.path.insert(0, os.path.join(HERE, os.pardir, os.pardir, "python"))
    import memroom

    if asked.card and len(asked.names) == 1:
        sys.exit(0 if on_card(asked.names[0]) else 1)
    if asked.card:
        return all_on_card(asked.memroom, asked.names or list(CARD))
    equal, host, rehearsed = 0, 0.0, 0.0
    names = asked.names or list(MODELS)
    for name in names:
        model, sample = MODELS[name]()
        want = of_rehearsal(asked.memroom, name, asked.gpu)
        begun = time.perf_counter()
        first = memroom.estimate(model, sample, "AdamW", gpu=asked.gpu)
        middle = time.perf_counter()
        train(model, sample, "cpu")
        host, rehearsed = host + time.perf_counter() - middle, rehearsed + middle - begun
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
    print("three steps of all: %.1f s on the host, %.1f s estimated" % (host, rehearsed))


if __name__ == "__main__":
    main()
