"""Peak of PyTorch's MemTracker on fake tensors, one JSON line a case: the peer of `memroom plan` in bench/plan.

Usage: memtracker.py GROUNDTRUTH_DIR [--all]. Without --all only small text models, a few seconds each.
"""
import contextlib
import json
import os
import sys

QUICK = ("llama160m-b8-s1024-bf16", "bert-b8-s128", "vitb16-b32-fp32")


def build(case, config):
    import torch

    if case["family"] == "torchvision":
        import torchvision

        return getattr(torchvision.models, case["config"]["name"])(weights=None)
    import transformers as T

    conf = T.AutoConfig.for_model(**{k: v for k, v in config.items() if k not in ("transformers_version",)})
    auto = {"bert": T.AutoModelForMaskedLM, "t5": T.AutoModelForSeq2SeqLM, "vit": T.AutoModelForImageClassification}.get(case["family"], T.AutoModelForCausalLM)
    model = auto.from_config(conf, attn_implementation=case.get("attn", "sdpa"))
    if case.get("ckpt"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def peak(case, config):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        half = case.get("precision") == "bf16"
        torch.set_default_dtype(torch.bfloat16 if half else torch.float32)  # fake weights cannot be cast afterwards
        model = build(case, config)
        params = [p for p in model.parameters()]
        kind = case.get("optim", "adamw")
        opt = torch.optim.SGD(params, lr=0.1, momentum=0.9 if kind == "sgdm" else 0.0) if kind.startswith("sgd") else torch.optim.AdamW(params)
        amp = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(case.get("precision"))
        tracker = MemTracker()
        tracker.track_external(model, opt)
        with tracker:
            for _ in range(2):
                with torch.autocast("cpu", dtype=amp) if amp else contextlib.nullcontext():
                    loss = step(model, case, half)
                loss.backward()
                opt.step()
                opt.zero_grad()
                tracker.reset_mod_stats()
        snapshot = tracker.get_tracker_snapshot("peak")
    return max(per["Total"] for per in snapshot.values())


def step(model, case, half):
    import torch

    b, dtype = case["batch"], torch.bfloat16 if half else torch.float32
    if case["family"] in ("torchvision", "vit"):
        x, y = torch.randn(b, 3, 224, 224, dtype=dtype), torch.zeros(b, dtype=torch.long)
        return torch.nn.functional.cross_entropy(model(x), y) if case["family"] == "torchvision" else model(pixel_values=x, labels=y).loss
    ids = torch.zeros(b, case["seq"], dtype=torch.long)
    extra = {"use_cache": False} if case["family"] in ("gpt2", "llama") else {}
    return model(input_ids=ids, labels=ids, **extra).loss


def main():
    folder = sys.argv[1]
    configs = json.load(open(os.path.join(folder, "h200-configs.json")))
    for line in open(os.path.join(folder, "h200-peaks.jsonl")):
        d = json.loads(line)
        if "--all" not in sys.argv and d["id"] not in QUICK or d["case"]["family"] in ("lstm", "mlp"):
            continue
        try:
            print(json.dumps({"id": d["id"], "peak": peak(d["case"], configs.get(d["id"]))}), flush=True)
        except Exception as e:  # a peer that fails on a case is part of the comparison
            print(f"MemTracker fails on {d['id']}: {type(e).__name__}: {str(e)[:120]}", file=sys.stderr)


if __name__ == "__main__":
    main()
