"""Records snapshots whose blocks are known, for the category inference of `memroom snapshot`.

usage: python3 categories.py OUT      (on a GPU, about two minutes; one process for each scenario,
six at once)

Each scenario stops at two moments of step 3 and dumps torch.cuda.memory._snapshot() with the true
category of every block that the program knows: parameters and buffers, gradients, optimizer state,
tensors saved for the backward pass. Files: OUT/NAME-{before_step,in_forward}.pickle.gz and
OUT/truth.jsonl. Some of them are kept in diagnose/testdata/known.
"""

import contextlib
import gzip
import json
import os
import pickle
import subprocess
import sys

MOMENTS = ("before_step", "in_forward")


def trim(snapshot, frames):
    cache = {}

    def cut(f):
        if id(f) not in cache:
            cache[id(f)] = (f, f[:frames])
        return cache[id(f)][1]

    for s in snapshot["segments"]:
        s["frames"] = []
        for b in s["blocks"]:
            b["frames"] = cut(b.get("frames", []))
    for trace in snapshot["device_traces"]:
        for e in trace:
            if "frames" in e:
                e["frames"] = cut(e["frames"])
    return snapshot


class Done(Exception):
    pass


class Recorder:
    def __init__(self, name, moment, out, frames):
        self.name, self.moment, self.out, self.frames = name, moment, out, frames
        self.saved = {}
        self.step = 0

    def hooks(self):
        import torch

        def pack(t):
            if t.is_cuda:
                self.saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)

    def at(self, moment, models, optimizers):
        if moment != self.moment or self.step != 3:
            return
        import torch

        torch.cuda.synchronize()
        truth = {}

        def put(t, what):
            if torch.is_tensor(t) and t.is_cuda:
                truth.setdefault(t.untyped_storage().data_ptr(), what)

        for m in models:
            for p in list(m.parameters()) + list(m.buffers()) if hasattr(m, "parameters") else m:
                put(p, "weights")
        for m in models:
            for p in m.parameters() if hasattr(m, "parameters") else m:
                if getattr(p, "grad", None) is not None:
                    put(p.grad, "gradients")
        for o in optimizers:
            for state in o.state.values():
                for v in state.values():
                    put(v, "optimizer")
        for ptr in self.saved:
            truth.setdefault(ptr, "activations")
        snapshot = trim(torch.cuda.memory._snapshot(), self.frames)
        file = f"{self.name}-{self.moment}"
        with gzip.open(os.path.join(self.out, file + ".pickle.gz"), "wb", 9) as f:
            pickle.dump(snapshot, f, protocol=4)
        stats = torch.cuda.memory_stats()
        with open(os.path.join(self.out, "truth.jsonl"), "a") as f:
            f.write(
                json.dumps(
                    {
                        "id": file,
                        "truth": {str(k): v for k, v in truth.items()},
                        "allocated": stats["allocated_bytes.all.current"],
                        "peak": stats["allocated_bytes.all.peak"],
                        "reserved_peak": stats["reserved_bytes.all.peak"],
                    }
                )
                + "\n"
            )
        raise Done


def mlp(width=1024, depth=4, out=1000):
    import torch.nn as nn

    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, out))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=3, n_embd=384, n_head=6, vocab_size=8000, n_positions=256)
    )


def llama(**kw):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=384,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            intermediate_size=1024,
            vocab_size=8000,
            max_position_embeddings=512,
            **kw,
        )
    )


def loop(
    r,
    model,
    optimizer,
    batch,
    loss_of,
    accumulation=1,
    set_to_none=True,
    autocast=None,
    mid=None,
    scheduler=None,
):
    import torch

    mid = mid or model

    def hook(module, args, output=None):
        r.at("in_forward", [model], [optimizer])

    last = [m for m in mid.modules() if not list(m.children())][-1]
    last.register_forward_pre_hook(lambda m, a: hook(m, a))
    for r.step in range(1, 5):
        r.saved.clear()
        for _ in range(accumulation):
            x = batch()
            with r.hooks(), (
                torch.autocast("cuda", autocast) if autocast else contextlib.nullcontext()
            ):
                loss = loss_of(model, x)
            (loss / accumulation).backward()
            r.saved.clear()
        r.at("before_step", [model], [optimizer])
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)


def tokens(n=4, length=128, vocab=8000):
    import torch

    return torch.randint(0, vocab, (n, length), device="cuda")


def lm_loss(model, x):
    return model(input_ids=x, labels=x).loss


def scenario(name, r):
    import torch
    import torch.nn.functional as F

    AdamW = torch.optim.AdamW
    dev = "cuda"
    xent = lambda m, x: F.cross_entropy(m(x), torch.zeros(x.shape[0], dtype=torch.long, device=dev))
    images = lambda: torch.randn(8, 3, 128, 128, device=dev)
    vectors = lambda: torch.randn(512, 1024, device=dev)
    if name == "accumulation":
        m = gpt2().to(dev)
        loop(r, m, AdamW(m.parameters()), tokens, lm_loss, accumulation=3)
    elif name == "keep_grads":
        m = mlp().to(dev)
        loop(r, m, AdamW(m.parameters()), vectors, xent, set_to_none=False)
    elif name == "lora":
        m = llama().to(dev)
        for p in m.parameters():
            p.requires_grad_(False)
        for layer in m.model.layers:
            for lin in (layer.self_attn.q_proj, layer.self_attn.v_proj):
                a = torch.nn.Parameter(torch.randn(8, lin.in_features, device=dev) * 0.01)
                b = torch.nn.Parameter(torch.zeros(lin.out_features, 8, device=dev))
                lin.lora_a, lin.lora_b = a, b
                lin.register_forward_hook(
                    lambda mod, args, out: out + (args[0] @ mod.lora_a.t()) @ mod.lora_b.t()
                )
        loop(r, m, AdamW([p for p in m.parameters() if p.requires_grad]), tokens, lm_loss)
    elif name == "fused_adamw":
        m = gpt2().to(dev)
        loop(r, m, AdamW(m.parameters(), fused=True), tokens, lm_loss, autocast=torch.bfloat16)
    elif name == "plain_sgd":
        m = mlp().to(dev)
        loop(r, m, torch.optim.SGD(m.parameters(), lr=0.1), vectors, xent)
    elif name == "adafactor":
        m = gpt2().to(dev)
        loop(r, m, torch.optim.Adafactor(m.parameters()), tokens, lm_loss)
    elif name == "checkpointing":
        m = llama().to(dev)
        m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        m.config.use_cache = False
        m.train()
        loop(r, m, AdamW(m.parameters()), tokens, lm_loss)
    elif name == "resnet":
        import torchvision

        m = torchvision.models.resnet18().to(dev)
        loop(r, m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), images, xent)
    elif name == "bf16_weights":
        m = llama().to(dev, torch.bfloat16)
        loop(r, m, AdamW(m.parameters()), tokens, lm_loss)
    elif name == "init_on_device":
        with torch.device(dev):
            m = mlp()
        loop(r, m, AdamW(m.parameters()), vectors, xent)
    elif name == "clip_and_norm":
        m = gpt2().to(dev)
        o = AdamW(m.parameters())
        step = o.step
        o.step = lambda *a: (torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0), step(*a))[1]
        loop(r, m, o, tokens, lm_loss)
    elif name == "functional":
        w = [torch.randn(1024, 1024, device=dev, requires_grad=True) for _ in range(4)]
        o = AdamW(w)
        for r.step in range(1, 5):
            r.saved.clear()
            with r.hooks():
                h = vectors()
                for i, p in enumerate(w):
                    h = torch.relu(h @ p)
                    if i == 2:
                        r.at("in_forward", [w], [o])
                loss = h.square().mean()
            loss.backward()
            r.saved.clear()
            r.at("before_step", [w], [o])
            o.step()
            o.zero_grad()
    elif name == "gan":
        g, d = mlp(out=1024).to(dev), mlp(out=1).to(dev)
        og, od = AdamW(g.parameters()), AdamW(d.parameters())
        for r.step in range(1, 5):
            r.saved.clear()
            with r.hooks():
                fake = g(vectors())
                ld = (d(fake.detach()) - d(vectors())).mean()
            ld.backward()
            od.step()
            od.zero_grad()
            with r.hooks():
                lg = -d(fake).mean()
                r.at("in_forward", [g, d], [og, od])
            lg.backward()
            r.saved.clear()
            r.at("before_step", [g, d], [og, od])
            og.step()
            og.zero_grad()
            d.zero_grad()
    elif name == "late":
        m = gpt2().to(dev)
        loop(r, m, AdamW(m.parameters()), tokens, lm_loss)
    elif name in ("no_stacks", "cpp_stacks", "short_stacks", "streams", "expandable", "warm_eval"):
        m = gpt2().to(dev)
        if name == "warm_eval":
            with torch.no_grad():
                for _ in range(3):
                    m(input_ids=tokens())
        batch = tokens
        if name == "streams":
            side = torch.cuda.Stream()

            def batch():
                with torch.cuda.stream(side):
                    x = tokens()
                x.record_stream(torch.cuda.current_stream())
                torch.cuda.current_stream().wait_stream(side)
                return x

        loop(r, m, AdamW(m.parameters()), batch, lm_loss)
    elif name == "compiled":
        m = mlp().to(dev)
        c = torch.compile(m)
        loop(r, m, AdamW(m.parameters()), vectors, lambda _, x: xent(c, x))
    elif name == "trainer":
        from transformers import Trainer, TrainerCallback, TrainingArguments

        m = gpt2()
        data = [
            {"input_ids": torch.randint(0, 8000, (128,)), "labels": torch.randint(0, 8000, (128,))}
            for _ in range(64)
        ]

        class Stop(TrainerCallback):
            def on_step_begin(self, args, state, control, **kw):
                r.step = state.global_step + 1

            def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kw):
                o = t.optimizer.optimizer if hasattr(t.optimizer, "optimizer") else t.optimizer
                r.at("before_step", [m], [o])

        t = Trainer(
            model=m,
            args=TrainingArguments(
                os.path.join(r.out, "trainer"),
                per_device_train_batch_size=4,
                max_steps=4,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=data,
            callbacks=[Stop()],
        )
        m.lm_head.register_forward_pre_hook(
            lambda *_: r.at(
                "in_forward",
                [m],
                [t.optimizer.optimizer if hasattr(t.optimizer, "optimizer") else t.optimizer],
            )
        )
        t.train()
    else:
        raise SystemExit(f"unknown scenario {name}")


NAMES = [
    "accumulation",
    "keep_grads",
    "lora",
    "fused_adamw",
    "plain_sgd",
    "adafactor",
    "checkpointing",
    "resnet",
    "bf16_weights",
    "init_on_device",
    "clip_and_norm",
    "functional",
    "gan",
    "late",
    "no_stacks",
    "cpp_stacks",
    "short_stacks",
    "streams",
    "expandable",
    "warm_eval",
    "compiled",
    "trainer",
]


def child(name, moment, out):
    if name == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    frames = {"short_stacks": 3, "cpp_stacks": 24}.get(name, 10)
    r = Recorder(name, moment, out, frames)
    arguments = dict(max_entries=1_000_000, stacks="all" if name == "cpp_stacks" else "python")
    if name == "no_stacks":
        arguments["context"] = None
    torch.manual_seed(0)
    if name == "late":
        inner = r.at

        def at(m, models, optimizers):
            if m == "before_step" and r.step == 1:
                torch.cuda.memory._record_memory_history(**arguments)
            inner(m, models, optimizers)

        r.at = at
    else:
        torch.cuda.memory._record_memory_history(**arguments)
    try:
        scenario(name, r)
    except Done:
        print("ok", name, moment, flush=True)
        return
    raise SystemExit(f"{name} {moment}: the moment never came")


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    if len(sys.argv) == 4:
        return child(sys.argv[2], sys.argv[3], out)
    jobs = [(n, m) for n in NAMES for m in MOMENTS]
    running = []
    while jobs or running:
        while jobs and len(running) < 6:
            n, m = jobs.pop(0)
            log = open(os.path.join(out, f"{n}-{m}.log"), "w")
            running.append(
                (
                    n,
                    m,
                    subprocess.Popen([sys.executable, __file__, out, n, m], stdout=log, stderr=log),
                )
            )
        for job in running[:]:
            try:
                code = job[2].wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
            running.remove(job)
            log = os.path.join(out, f"{job[0]}-{job[1]}.log")
            if code == 0:
                os.remove(log)
            else:
                print("FAILED", job[0], job[1], open(log).read()[-400:], flush=True)


main()
