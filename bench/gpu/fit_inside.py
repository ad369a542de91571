"""In-process remedies on a real card, without the supervisor: run from the checkout's root as
`python bench/gpu/fit_inside.py [CASE...]`.

For each case: the uncapped run (losses, reserved peak, step time), then the same under caps of 60 %
and 80 % of that peak with the probe's governor in place. Prints one JSON line a run: finished or
not, largest relative difference of the loss, peak, step time, what was chosen; and the time of the
same remedy written by hand.
"""

import gc
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "probe", "py")
)
STEPS = 8


def gpt2(torch, layers=12, width=768, dropout=0.0):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers,
            n_head=12,
            n_embd=width,
            n_positions=512,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
        )
    ).cuda()


def tokens(torch, rows, padded=True):
    x = torch.randint(0, 50000, (rows, 512), device="cuda")
    y = x.clone()
    if padded:
        for i in range(rows):
            y[i, 128 + (i * 37) % 384 :] = -100
    return x, y


def cases(torch):
    import torch.nn.functional as F
    import torchvision

    def lm_step(m, d):
        return m(input_ids=d[0], labels=d[1]).loss

    def lm_outside(m, d):
        logits = m(input_ids=d[0]).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), d[1][:, 1:].flatten())

    def images(rows, classes=1000, size=224):
        return lambda: (
            torch.randn(rows, 3, size, size, device="cuda"),
            torch.randint(0, classes, (rows,), device="cuda"),
        )

    def classify(m, d):
        return F.cross_entropy(m(d[0]), d[1])

    def bf16(step):
        def inner(m, d):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return step(m, d)

        return inner

    def fp16(step):
        def inner(m, d):
            with torch.autocast("cuda", dtype=torch.float16):
                return step(m, d)

        return inner

    adamw = lambda p: torch.optim.AdamW(p, 1e-4)
    sgd = lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9)
    return {
        "gpt2-loss-fp32": (lambda: gpt2(torch), lambda: tokens(torch, 16), lm_step, adamw, False),
        "gpt2-outside-fp32": (
            lambda: gpt2(torch),
            lambda: tokens(torch, 16),
            lm_outside,
            adamw,
            False,
        ),
        "gpt2-loss-bf16": (
            lambda: gpt2(torch),
            lambda: tokens(torch, 32),
            bf16(lm_step),
            adamw,
            False,
        ),
        "gpt2-loss-fp16-scaler": (
            lambda: gpt2(torch),
            lambda: tokens(torch, 32),
            fp16(lm_step),
            adamw,
            True,
        ),
        "gpt2-loss-dropout": (
            lambda: gpt2(torch, dropout=0.1),
            lambda: tokens(torch, 16),
            lm_step,
            adamw,
            False,
        ),
        "resnet50-fp32": (
            lambda: torchvision.models.resnet50().cuda(),
            images(96),
            classify,
            sgd,
            False,
        ),
        "vit-b16-fp32": (
            lambda: torchvision.models.vit_b_16().cuda(),
            images(64),
            classify,
            adamw,
            False,
        ),
        "convnext-fp32": (
            lambda: torchvision.models.convnext_tiny().cuda(),
            images(64),
            classify,
            adamw,
            False,
        ),
    }


def train(torch, case, steps=STEPS):
    make, batch, step, optimizer, scaled = case
    torch.manual_seed(0)
    model = make()
    model.train()
    data = [batch() for _ in range(2)]
    opt = optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for i in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        opt.zero_grad()
        loss = step(model, data[i % 2])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
    return {
        "losses": losses,
        "seconds": sorted(times[2:])[len(times[2:]) // 2],
        "reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.max_memory_allocated(),
    }


def by_hand(torch, case, pieces):
    """The best hand-written accumulation over the same pieces, for models that return their
    loss.
    """
    make, batch, step, optimizer, scaled = case

    def sliced(m, d):
        n = len(d[0])
        size = -(-n // pieces)
        for i in range(0, n, size):
            part = tuple(t[i : i + size] for t in d)
            last = step(m, part) * (len(part[0]) / n)
            if i + size < n:
                last.backward()
        return last

    return train(torch, (make, batch, sliced, optimizer, False))


def one(name):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    from _memroom_probe.fit import registry
    from _memroom_probe.fit.calls import outermost

    case = cases(torch)[name]
    total = torch.cuda.get_device_properties(0).total_memory

    def clean():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    base = train(torch, case)
    clean()
    print(
        json.dumps(
            {
                "case": name,
                "run": "uncapped",
                **{k: base[k] for k in ("seconds", "reserved", "allocated")},
            }
        ),
        flush=True,
    )
    pieces = 1
    for cap in (0.8, 0.6):
        torch.cuda.set_per_process_memory_fraction(cap * base["reserved"] / total)
        for fit in ("without", "fit"):
            said = []
            if fit == "fit":
                registry.apply(
                    [
                        {"id": i, "params": {"failed": True}}
                        for i in ("micro_batch", "checkpointing")
                    ],
                    lambda kind, text, **f: said.append(
                        [kind, text, f.get("predicted"), f.get("pieces")]
                    ),
                )
            row = {"case": name, "run": fit, "cap": cap, "limit": int(cap * base["reserved"])}
            try:
                got = train(torch, case)
                row.update({k: got[k] for k in ("seconds", "reserved", "allocated")})
                row["slower"] = round(got["seconds"] / base["seconds"], 3)
                row["loss"] = max(
                    abs(a - b) / abs(a) for a, b in zip(base["losses"], got["losses"])
                )
                pieces = max([pieces] + [s[3] or 1 for s in said])
            except torch.cuda.OutOfMemoryError as why:
                row["oom"] = str(why)[:120]
            except Exception as why:
                row["error"] = "%s: %s" % (type(why).__name__, str(why)[:500])
            outermost.forget_all()
            clean()
            print(json.dumps({**row, "said": said}), flush=True)
    torch.cuda.set_per_process_memory_fraction(1.0)
    if "loss" in name and "scaler" not in name and pieces > 1:
        hand = by_hand(torch, case, pieces)
        print(
            json.dumps(
                {
                    "case": name,
                    "run": "by hand",
                    "pieces": pieces,
                    "seconds": hand["seconds"],
                    "slower": round(hand["seconds"] / base["seconds"], 3),
                    "reserved": hand["reserved"],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    if os.environ.get("ONE"):
        one(os.environ["ONE"])
    else:
        import torch

        for name in sys.argv[1:] or list(cases(torch)):
            code = subprocess.run(
                [sys.executable, __file__], env=dict(os.environ, ONE=name)
            ).returncode
            if code:
                print(json.dumps({"case": name, "exit": code}), flush=True)
