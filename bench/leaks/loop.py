"""One small training loop with one memory habit. usage: loop.py KIND [STEPS] [cuda] [SLEEP]

SLEEP seconds are added to each step (0.004).

The line that keeps what leaks says `# keeps`, the line that allocates it `# makes`, the line of the
loop from which it is made `# calls`, each with the kind; bench/leaks/run compares them with what
memroom says. Kinds that begin with "healthy" must stay unnamed.
"""

import collections
import gc
import io
import random
import sys
import time

import torch

kind, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 150
device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0.004
torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)
        )
        self.head = torch.nn.Linear(256, 64)

    def forward(self, x):
        return self.head(
            self.body(x)
        )  # makes sum outputs state table metric hook retain noisy error rare late


class Accuracy:
    def __init__(self):
        self.seen = []

    def update(self, out):
        self.seen.append(out.detach())  # keeps metric


model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters())
kept, table, total, state, metric, ring = (
    [],
    {},
    0.0,
    None,
    Accuracy(),
    collections.deque(maxlen=20),
)
history = torch.zeros(0, 64, device=device)
average = None


def remember(module, args, out):
    kept.append(out)  # keeps hook


if kind == "hook":
    model.body.register_forward_hook(remember)


def evaluate():
    return model(torch.randn(128, 256, device=device)).square().mean()  # makes late


def batch_of(step):
    if kind in ("noisy", "healthy_varbatch"):
        return random.randint(64, 256)
    if kind == "healthy_curriculum":
        return 64 + min(step, 100)
    return 128


def fail(out):
    raise ValueError("a bad batch")


for step in range(steps):
    x = torch.randn(batch_of(step), 256, device=device)
    out = model(x)  # calls outputs table metric hook retain noisy error rare
    loss = out.square().mean()  # makes losses
    if kind == "retain":
        loss.backward(retain_graph=True)
        kept.append(loss)  # keeps retain
    else:
        loss.backward()
    if kind == "losses":
        kept.append(loss)  # keeps losses
    elif kind == "sum":
        total = total + model(x).mean()  # makes sum keeps sum
    elif kind == "outputs":
        kept.append(out.detach())  # keeps outputs
    elif kind == "state":
        state = (
            out.mean(0) if state is None else 0.9 * state + model(x).mean(0)
        )  # makes state keeps state
    elif kind == "table":
        table[step] = out.detach()  # keeps table
    elif kind == "metric":
        metric.update(out)
    elif kind == "grads":
        kept.append([p.grad.clone() for p in model.parameters()])  # makes grads keeps grads
    elif kind == "cat":
        history = torch.cat([history, out.detach()])  # makes cat keeps cat
    elif kind == "late" and step >= 60:
        total = total + evaluate()  # makes late keeps late
    elif kind == "rare" and step % 5 == 0:
        kept.append(out.detach())  # keeps rare
    elif kind == "noisy":
        kept.append(out.detach())  # keeps noisy
    elif kind == "error":
        try:
            fail(out)
        except ValueError as e:
            kept.append(e)  # keeps error
    elif kind == "lists":
        kept.append([float(i) for i in range(4000)])  # keeps lists makes lists
    elif kind == "healthy_ring":
        ring.append(out.detach())
    elif kind == "healthy_cache" and step < 30:
        table[step] = torch.zeros(1 << 18, device=device)
    elif kind == "healthy_evaluation" and step % 20 == 19:
        with torch.no_grad():
            total = sum(evaluate().item() for _ in range(5))
    elif kind == "healthy_average" and step == 70:
        average = [p.detach().clone() for p in model.parameters()]
    elif kind == "healthy_cycles":
        node = {"out": out.detach()}
        node["self"] = node
        if step % 23 == 22:
            gc.collect()
    elif kind == "healthy_checkpoint" and step % 40 == 39:
        torch.save(model.state_dict(), io.BytesIO())
    elif kind == "healthy_item":
        kept.append(loss.item())
    elif kind == "healthy_flush":
        kept.append(out.detach())
        if len(kept) == 25:
            kept.clear()
    if kind != "healthy_accumulation" or step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
    if pause:
        time.sleep(pause)
