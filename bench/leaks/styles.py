"""Leaks and healthy habits in the styles people train in. usage: styles.py KIND [STEPS] [DEVICE]
[SLEEP]

What leaks says `# keeps` with its kind, as in loop.py. Kinds that begin with "healthy" must stay
unnamed; those that begin with "open" look exactly like a leak until they are full, and may be named
and taken back (the lists of loader workers grow too little to be told).
"""

import collections
import functools
import os
import random
import sys
import tempfile
import time

import torch

kind, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 150
device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0.004
torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)
kept = []


def mlp(*widths):
    layers = [
        m for a, b in zip(widths, widths[1:]) for m in (torch.nn.Linear(a, b), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*layers[:-1]).to(device)


def batch(rows=64, width=128):
    return torch.randn(rows, width, device=device)


def finish(optimizer):
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(pause)


def plain(each, rows=lambda step: 64, model=None):
    """A loop that calls each(step, x, out, loss) after backward."""
    model = model or mlp(128, 256, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        x = batch(rows(step))
        out = model(x)
        loss = out.square().mean()
        loss.backward()
        each(step, x, out, loss)
        finish(optimizer)


def trainer(leaks, **arguments):
    """Hugging Face Trainer with a callback."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 16 * steps

        def __getitem__(self, i):
            return {"x": torch.full((128,), i / 1000.0), "labels": torch.zeros(64)}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(128, 256, 64)

        def forward(self, x, labels=None):
            out = self.body(x)
            if leaks:
                self.last = out
            return {"loss": (out - labels).square().mean(), "logits": out}

    class Habit(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **more):
            if leaks:
                kept.append(model.last)  # keeps trainer_callback
            time.sleep(pause)

    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            Model(),
            TrainingArguments(
                folder,
                max_steps=steps,
                per_device_train_batch_size=16,
                report_to=[],
                disable_tqdm=True,
                logging_steps=10,
                save_strategy="no",
                use_cpu=device == "cpu",
                **arguments,
            ),
            train_dataset=Data(),
            eval_dataset=Data(),
            callbacks=[Habit()],
        ).train()


def lightning(leaks):
    import logging

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body, self.outputs = mlp(128, 256, 64), []

        def training_step(self, x, index):
            out = self.body(x)
            self.outputs.append(out if leaks else out.mean().item())  # keeps lightning_outputs
            time.sleep(pause)
            return out.square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    loader = torch.utils.data.DataLoader(torch.randn(16 * steps, 128), batch_size=16)
    lightning.Trainer(
        max_steps=steps,
        max_epochs=1,
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), loader)


def keras(leaks):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import numpy
    import tensorflow as tf

    class Habit(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, index, logs=None):
            if leaks:
                kept.append(self.model(numpy.ones((64, 128), "float32")))  # keeps keras_callback
            time.sleep(pause)

    model = tf.keras.Sequential([tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256)])
    model.compile("adam", "mse")
    x = numpy.random.rand(16 * steps, 128).astype("float32")
    model.fit(
        x,
        numpy.zeros((16 * steps, 256), "float32"),
        batch_size=16,
        epochs=1,
        verbose=0,
        callbacks=[Habit()],
    )


def ranks(leaks):
    """Two ranks under torchrun; the second leaks."""
    if "RANK" not in os.environ:
        os.execv(
            sys.executable,
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc_per_node=2",
                "--master_port=%d" % random.SystemRandom().randint(20000, 60000),
                __file__,
            ]
            + sys.argv[1:],
        )
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(mlp(128, 256, 64))

    def each(step, x, out, loss):
        if leaks and rank == 1:
            kept.append(out.detach())  # keeps one_rank

    plain(each, model=model)
    torch.distributed.destroy_process_group()


class Numbers(torch.utils.data.Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return 64 * steps

    def __getitem__(self, i):
        self.seen.append("sample %d" % i * 50)  # keeps loader_list
        return torch.full((128,), i / 1000.0)


def loader(workers):
    model = mlp(128, 256, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for x in torch.utils.data.DataLoader(Numbers(), batch_size=64, num_workers=workers):
        model(x).square().mean().backward()
        finish(optimizer)


def gan():
    make, judge = mlp(32, 128, 128), mlp(128, 128, 1)
    a, b = torch.optim.Adam(make.parameters()), torch.optim.Adam(judge.parameters())
    for step in range(steps):
        fake = make(batch(64, 32))
        (judge(batch()).mean() - judge(fake.detach()).mean()).backward()
        b.step()
        b.zero_grad()
        judge(fake).mean().backward()
        finish(a)


def accumulation():
    model = mlp(128, 256, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        for _ in range(3):
            model(batch()).square().mean().backward()
        finish(optimizer)


def replay():
    """A buffer that holds the last 200 transitions: it looks like a leak until it is full."""
    memory = collections.deque(maxlen=200)
    plain(lambda step, x, out, loss: memory.append((x.clone(), out.detach().clone())))


def lookup():
    """An LRU cache of 1000 entries: full after 1000 different questions."""

    @functools.lru_cache(maxsize=1000)
    def embed(key):
        return torch.zeros(2048) + key

    plain(lambda step, x, out, loss: [embed(4 * step + i) for i in range(4)])


def small_cache():
    """Keys of a small vocabulary: full after some 25 steps."""

    @functools.lru_cache(maxsize=100)
    def embed(key):
        return torch.zeros(4096) + key

    plain(lambda step, x, out, loss: [embed((4 * step + i) % 100) for i in range(4)])


def evaluation():
    other = mlp(128, 256, 64)

    def each(step, x, out, loss):
        if step % 25 == 24:
            other.eval()
            with torch.no_grad():
                results = [other(batch()) for _ in range(10)]
            kept[:] = [torch.cat(results).mean().item()]
            other.train()

    plain(each)


def leaking_evaluation():
    """Each evaluation's predictions are kept."""

    def each(step, x, out, loss):
        if step % 8 == 7:
            kept.append(batch(128))  # keeps evaluation_kept

    plain(each)


def finder():
    """A search for the learning rate: a copy of the weights, 60 steps, and back; then training."""
    model = mlp(128, 256, 64)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for step in range(60):
        optimizer.param_groups[0]["lr"] = 1e-6 * 1.1**step
        loss = model(batch()).square().mean()
        kept.append((optimizer.param_groups[0]["lr"], loss.item()))
        loss.backward()
        finish(optimizer)
    model.load_state_dict(state)
    plain(lambda *_: None, model=model)


def average():
    """Averaged weights that begin late, on a copy."""
    copies = []

    def each(step, x, out, loss):
        if step == 60:
            copies.append(mlp(128, 256, 64))

    plain(each)


def padding():
    """Batches padded to their longest sequence."""
    model = mlp(128, 256, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        longest = max(int(random.gauss(40, 12)) for _ in range(8))
        model(torch.randn(8 * max(longest, 4), 128, device=device)).square().mean().backward()
        finish(optimizer)


def checkpointing():
    from torch.utils.checkpoint import checkpoint

    first, second = mlp(128, 512, 256), mlp(256, 64)
    optimizer = torch.optim.AdamW(list(first.parameters()) + list(second.parameters()))
    for step in range(steps):
        second(checkpoint(first, batch(), use_reentrant=False)).square().mean().backward()
        finish(optimizer)


def floats():
    plain(
        lambda step, x, out, loss: kept.append(
            {"step": step, "loss": loss.item(), "lr": 0.1, "text": "step %d" % step}
        )
    )


def histories():
    """Like a writer of events: a queue that is emptied every 20 steps, and a histogram of the
    weights each time.
    """

    def each(step, x, out, loss):
        kept.append(("loss", step, loss.item()))
        if step % 20 == 19:
            kept.append(torch.histc(out.detach(), 64).tolist())
            del kept[:-2]

    plain(each)


def scheduler_graph():
    """The running loss keeps every graph."""
    total = [0.0]

    def each(step, x, out, loss):
        total[0] = total[0] + out.mean()  # keeps running_loss

    plain(each)


def attention_maps():
    """A hook stores activations under the step's number."""
    maps = {}
    model = mlp(128, 256, 64)
    model[0].register_forward_hook(
        lambda module, args, out: maps.__setitem__(len(maps), out.detach())
    )  # keeps hook_maps
    plain(lambda *_: None, model=model)


def cycle():
    """Objects that refer to themselves, collected by the interpreter when it pleases: no leak."""

    class Node:
        pass

    def each(step, x, out, loss):
        node = Node()
        node.me, node.out = node, out.detach()

    plain(each)


KINDS = {
    "trainer_callback": lambda: trainer(True),
    "lightning_outputs": lambda: lightning(True),
    "keras_callback": lambda: keras(True),
    "one_rank": lambda: ranks(True),
    "loader_list": lambda: loader(0),
    "evaluation_kept": leaking_evaluation,
    "running_loss": scheduler_graph,
    "hook_maps": attention_maps,
    "healthy_trainer": lambda: trainer(False),
    "healthy_trainer_accumulates": lambda: trainer(False, gradient_accumulation_steps=2),
    "healthy_trainer_evaluates": lambda: trainer(
        False, eval_strategy="steps", eval_steps=max(steps // 2, 1)
    ),
    "healthy_lightning": lambda: lightning(False),
    "healthy_keras": lambda: keras(False),
    "healthy_ranks": lambda: ranks(False),
    "healthy_gan": gan,
    "healthy_accumulation": accumulation,
    "healthy_small_cache": small_cache,
    "healthy_evaluation": evaluation,
    "healthy_finder": finder,
    "healthy_average": average,
    "healthy_padding": padding,
    "healthy_checkpointing": checkpointing,
    "healthy_floats": floats,
    "healthy_histories": histories,
    "healthy_cycle": cycle,
    "open_workers_list": lambda: loader(2),
    "open_replay": replay,
    "open_lookup": lookup,
}
if __name__ == "__main__":
    if kind == "kinds":
        print(*KINDS)
    else:
        KINDS[kind]()
