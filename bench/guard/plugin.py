"""What a mark of memroom costs a test: small models trained for ten steps, the same tests plain on
the host and marked, by turns, each way in a pytest of its own.

    python bench/guard/plugin.py --memroom bin/memroom [--times 5]

Prints the median of processor time and of the clock, of each test and of pytest as a whole. The
interpreter has torch, torchvision, transformers, lightning and pytest (testenv/ensure guard).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))

TESTS = """
import os
import lightning, pytest, torch, torchvision, transformers
from torch import nn

MARKED = bool(os.environ.get("MARKED"))
DEVICE = "cuda" if MARKED else "cpu"
pytestmark = [pytest.mark.limit_device_memory("24GiB", gpu="RTX4090")] if MARKED else []


def train(model, *shape, kind=None, top=0):
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        x = torch.randint(top, shape) if top else torch.randn(shape)
        out = model(x.to(DEVICE))
        (out[0] if isinstance(out, tuple) else out).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_mlp():
    train(nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)), 128, 784)


def test_convolutions():
    layers = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3), nn.BatchNorm2d(after), nn.ReLU()]
    train(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 22 * 22, 10)), 32, 3, 28, 28)


def test_resnet18():
    train(torchvision.models.resnet18(), 8, 3, 64, 64)


def test_lstm():
    train(nn.LSTM(64, 128, 2, batch_first=True), 32, 50, 64)


def test_transformer():
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    inner = nn.TransformerEncoder(layer, 3)
    train(nn.Sequential(nn.Embedding(2000, 128), inner, nn.Linear(128, 2000)), 16, 64, top=2000)


def spoken(model):
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        ids = torch.randint(1000, (8, 64)).to(DEVICE)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_gpt2():
    config = transformers.GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=1000)
    spoken(transformers.GPT2LMHeadModel(config))


def test_llama():
    spoken(transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=128,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=1000)))


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch, index):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def test_lightning(tmp_path):
    data = torch.utils.data.DataLoader(torch.zeros(1280, 784), batch_size=128)
    trainer = lightning.Trainer(max_epochs=1, default_root_dir=tmp_path, logger=False,
        accelerator="gpu" if MARKED else "cpu", devices=1, enable_progress_bar=False)
    trainer.fit(Module(), data)


def test_trainer(tmp_path):
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=100)
    row = {"input_ids": torch.ones(64, dtype=torch.int64), "labels": torch.ones(64).long()}
    arguments = transformers.TrainingArguments(output_dir=tmp_path, max_steps=10, report_to=[],
        disable_tqdm=True, save_strategy="no")
    transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments,
        train_dataset=[row] * 80).train()
"""

# Writes what each test took: processor time with that of its children, and by the clock.
CONFTEST = """
import json, os, time, pytest

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    cpu, clock = sum(os.times()[:4]), time.monotonic()
    yield
    with open(os.environ["TIMES"], "a") as file:
        spent = sum(os.times()[:4]) - cpu, time.monotonic() - clock
        file.write(json.dumps([item.name, *spent]) + "\\n")
"""

Times = dict[str, tuple[float, float]]


def one(folder: str, marked: bool) -> Times:
    path = os.path.join(folder, "times.jsonl")
    # one thread: several wait for each other in a loop, which counts as work where others compute
    environ = dict(os.environ, TIMES=path, MARKED="1" if marked else "", OMP_NUM_THREADS="1")
    cpu, clock = sum(os.times()[2:4]), time.monotonic()
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    line += ["-p", "memroom.pytest_plugin", "test_small.py"]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("the tests did not pass:\n" + done.stdout[-4000:] + done.stderr[-1000:])
    whole = sum(os.times()[2:4]) - cpu, time.monotonic() - clock
    with open(path) as file:
        rows: list[Any] = [json.loads(line) for line in file]
    os.remove(path)
    out = {name: (cpu, clock) for name, cpu, clock in rows}
    out["all tests"] = sum(v[0] for v in out.values()), sum(v[1] for v in out.values())
    out["with pytest's start"] = whole
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    os.environ["MEMROOM_BINARY"] = os.path.abspath(asked.memroom)
    root = os.path.join(HERE, os.pardir, os.pardir)
    os.environ["PYTHONPATH"] = os.path.join(root, "python")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("test_small.py", TESTS), ("conftest.py", CONFTEST)):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        runs = [(one(folder, False), one(folder, True)) for _ in range(asked.times)]
    print("%-22s %26s %26s" % ("median of %d" % asked.times, "processor time, s", "clock, s"))
    print("%-22s" % "" + "%9s %9s %6s" % ("plain", "marked", "x") * 2)
    for name in runs[0][0]:
        print("%-22s" % name, end="")
        for of in range(2):
            plain, marked = (statistics.median(r[way][name][of] for r in runs) for way in range(2))
            print("%9.2f %9.2f %6.2f" % (plain, marked, marked / max(plain, 1e-3)), end="")
        print()


if __name__ == "__main__":
    main()
