"""Peak of PyTorch's MemTracker on fake tensors for the measured setups: the peer of `memroom plan`
in bench/plan.

Usage: memtracker.py GROUNDTRUTH_DIR RESULTS.jsonl [ID...]. Appends one JSON line a case ("id",
"torch", and "peak" in bytes or "failed") and skips cases that RESULTS already holds for this
version of torch, so that it can be stopped and started again: all 47 take most of an hour on one
core. With IDs, only those, and again.
"""

import contextlib
import json
import os
import sys


def build(case, config):
    import torch

    family, c = case["family"], case["config"]
    if family == "torchvision":
        import torchvision

        return getattr(torchvision.models, c["name"])(weights=None)
    if family == "mlp":
        widths = [c["in"]] + [c["hidden"]] * c["layers"]
        hidden = [
            m for a, b in zip(widths, widths[1:]) for m in (torch.nn.Linear(a, b), torch.nn.ReLU())
        ]
        return torch.nn.Sequential(*hidden, torch.nn.Linear(c["hidden"], c["out"]))
    if family == "lstm":
        return recurrent(c)
    import transformers as T

    conf = T.AutoConfig.for_model(
        **{k: v for k, v in config.items() if k not in ("transformers_version",)}
    )
    auto = {
        "bert": T.AutoModelForMaskedLM,
        "t5": T.AutoModelForSeq2SeqLM,
        "vit": T.AutoModelForImageClassification,
    }.get(family, T.AutoModelForCausalLM)
    model = auto.from_config(conf, attn_implementation=case.get("attn", "sdpa"))
    if case.get("ckpt"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def recurrent(c):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(c["vocab"], c["embed"])
            self.rnn = nn.LSTM(c["embed"], c["hidden"], c["layers"], batch_first=True, dropout=0.1)
            self.out = nn.Linear(c["hidden"], c["vocab"])

        def forward(self, ids):
            return self.out(self.rnn(self.emb(ids))[0])

    return Net()


def optimizer(kind, params):
    import torch

    if kind.startswith("sgd"):
        return torch.optim.SGD(params, lr=0.1, momentum=0.9 if kind == "sgdm" else 0.0)
    if kind == "adafactor":
        return torch.optim.Adafactor(params)
    return torch.optim.AdamW(params, foreach={"adamw_loop": False}.get(kind))


def peak(case, config):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        half = case.get("precision") == "bf16"
        torch.set_default_dtype(
            torch.bfloat16 if half else torch.float32
        )  # fake weights cannot be cast afterwards
        model = build(case, config).train()
        for name, p in model.named_parameters():
            p.requires_grad_(not case.get("freeze") or any(part in name for part in case["freeze"]))
        params = [p for p in model.parameters() if p.requires_grad]
        opt = optimizer(case.get("optim", "adamw"), params)
        amp = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(case.get("precision"))
        tracker = MemTracker()
        tracker.track_external(model, opt)
        with tracker:
            for _ in range(2):
                for _ in range(case.get("accum", 1)):
                    with torch.autocast("cpu", dtype=amp) if amp else contextlib.nullcontext():
                        loss = step(model, case, half)
                    loss.backward()
                if case.get("clip"):
                    torch.nn.utils.clip_grad_norm_(params, 1.0)
                opt.step()
                opt.zero_grad(set_to_none=case.get("set_to_none", True))
                tracker.reset_mod_stats()
        snapshot = tracker.get_tracker_snapshot("peak")
    return max(per["Total"] for per in snapshot.values())


def step(model, case, half):
    import torch

    b, family, dtype = case["batch"], case["family"], torch.bfloat16 if half else torch.float32
    loss = torch.nn.functional.cross_entropy
    if family == "mlp":
        x, y = (
            torch.randn(b, case["config"]["in"], dtype=dtype),
            torch.randn(b, case["config"]["out"], dtype=dtype),
        )
        return torch.nn.functional.mse_loss(model(x), y)
    if family in ("torchvision", "vit"):
        x, y = torch.randn(b, 3, 224, 224, dtype=dtype), torch.zeros(b, dtype=torch.long)
        return (
            loss(model(x), y) if family == "torchvision" else model(pixel_values=x, labels=y).loss
        )
    ids = torch.zeros(b, case["seq"], dtype=torch.long)
    if family == "lstm":
        return loss(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    extra = {"use_cache": False} if family in ("gpt2", "llama") else {}
    return model(input_ids=ids, labels=ids, **extra).loss


def main():
    folder, results, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    import torch

    done = set()
    if os.path.exists(results) and not wanted:
        done = {d["id"] for d in map(json.loads, open(results)) if d["torch"] == torch.__version__}
    configs = json.load(open(os.path.join(folder, "h200-configs.json")))
    for line in open(os.path.join(folder, "h200-peaks.jsonl")):
        d = json.loads(line)
        if d["id"] in done or wanted and d["id"] not in wanted:
            continue
        answer = {"id": d["id"], "torch": torch.__version__}
        try:
            answer["peak"] = peak(d["case"], configs.get(d["id"]))
        except Exception as e:  # a peer that fails on a case is part of the comparison
            answer["failed"] = "%s: %s" % (type(e).__name__, str(e).split("\n")[0][:120])
        with open(results, "a") as f:
            f.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
