"""Peaks of setups before and after a remedy, for `go run ./bench/savings table OUT`.

python3 bench/gpu/savings.py OUT [ID prefix ...]     needs a card, torch, transformers, torchvision;
about two minutes

Reads savings.json beside it. Every distinct setup runs three steps in a process of its own, eight
at once (nothing is timed); a result that exists is not measured again. OUT/HASH.json holds the
setup, its peaks and the model's configuration.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOGETHER = int(os.environ.get("TOGETHER", "8"))


def name_of(family, config, setup):
    return hashlib.sha1(json.dumps([family, config, setup], sort_keys=True).encode()).hexdigest()[
        :12
    ]


def build(torch, job):
    family, config, setup = job["family"], job["config"], job["setup"]
    if family == "torchvision":
        import torchvision

        return getattr(torchvision.models, config["name"])(), None
    import transformers

    kinds = {"vit": "AutoModelForImageClassification", "bert": "AutoModelForMaskedLM"}
    cfg = transformers.AutoConfig.for_model(family, **config)
    cfg.use_cache = (
        "KEEP_CACHE" in os.environ
    )  # a cache of keys and values serves generation; in training it only costs copies
    if family == "vit":
        cfg.num_labels = 1000
    model = getattr(transformers, kinds.get(family, "AutoModelForCausalLM")).from_config(
        cfg, attn_implementation=setup.get("attn") or "sdpa"
    )
    return model, cfg


class LoRALinear:
    """Adapters on every linear layer but the head, as peft's target_modules='all-linear' makes
    them, without dropout.
    """

    @staticmethod
    def wrap(torch, model, rank):
        class Adapted(torch.nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base
                self.a = torch.nn.Linear(base.in_features, rank, bias=False)
                self.b = torch.nn.Linear(rank, base.out_features, bias=False)
                torch.nn.init.zeros_(self.b.weight)

            def forward(self, x):
                return self.base(x) + self.b(self.a(x.to(self.a.weight.dtype))) * 2.0

        model.requires_grad_(False)
        for name, module in list(model.named_modules()):
            for child, layer in list(module.named_children()):
                if isinstance(layer, torch.nn.Linear) and child != "lm_head":
                    setattr(module, child, Adapted(layer))


def optimizer_of(torch, name, params):
    o = torch.optim
    return {
        "adamw": lambda: o.AdamW(params, lr=1e-4),
        "adamw_fused": lambda: o.AdamW(params, lr=1e-4, fused=True),
        "adamw_loop": lambda: o.AdamW(params, lr=1e-4, foreach=False),
        "sgd": lambda: o.SGD(params, lr=1e-3),
        "sgdm": lambda: o.SGD(params, lr=1e-3, momentum=0.9),
        "adafactor": lambda: o.Adafactor(params, lr=1e-2),
    }[name]()


class HostOptimizer:
    """Optimizer state and a copy of the weights in host memory: gradients go out, weights come
    back.
    """

    def __init__(self, torch, name, params):
        self.params = params
        self.host = [torch.nn.Parameter(p.detach().cpu().float()) for p in params]
        self.inner = optimizer_of(torch, name, self.host)

    def step(self):
        for p, h in zip(self.params, self.host):
            h.grad = p.grad.detach().to("cpu", h.dtype)
        self.inner.step()
        for p, h in zip(self.params, self.host):
            p.data.copy_(h.data)

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


def chunked_loss(torch, model, ids):
    """The loss over the vocabulary in pieces of 1024 tokens, recomputed in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    hidden = model.base_model(input_ids=ids).last_hidden_state[:, :-1].flatten(0, 1)
    labels = ids[:, 1:].flatten()

    def piece(h, y):
        return torch.nn.functional.cross_entropy(model.lm_head(h).float(), y, reduction="sum")

    total = sum(
        checkpoint(piece, h, y, use_reentrant=False)
        for h, y in zip(hidden.split(1024), labels.split(1024))
    )
    return total / labels.numel()


def measure(job):
    import torch

    setup = job["setup"]
    torch.manual_seed(0)
    model, cfg = build(torch, job)
    precision = setup["precision"]
    if setup.get("lora_rank"):
        LoRALinear.wrap(torch, model, setup["lora_rank"])
    if precision == "bf16":
        model = model.bfloat16()
    model = model.cuda().train()
    if setup.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if setup.get("lora_rank"):
            model.enable_input_require_grads()
    params = [p for p in model.parameters() if p.requires_grad]
    offload = setup.get("offload") or []
    make = HostOptimizer if "optimizer" in offload else None
    optimizer = (
        make(torch, setup["optimizer"], params)
        if make
        else optimizer_of(torch, setup["optimizer"], params)
    )
    cast = (
        torch.autocast("cuda", dtype=torch.bfloat16)
        if precision == "amp_bf16"
        else contextlib.nullcontext()
    )
    kept = (
        torch.autograd.graph.save_on_cpu(pin_memory=True)
        if "activations" in offload
        else contextlib.nullcontext()
    )
    rows, dtype = setup["batch"], torch.bfloat16 if precision == "bf16" else torch.float32

    def loss_of():
        if cfg is None:
            x = torch.randn(rows, 3, setup["image"], setup["image"], device="cuda", dtype=dtype)
            return torch.nn.functional.cross_entropy(
                model(x), torch.randint(0, 1000, (rows,), device="cuda")
            )
        if job["family"] == "vit":
            x = torch.randn(rows, 3, setup["image"], setup["image"], device="cuda", dtype=dtype)
            return model(pixel_values=x, labels=torch.randint(0, 1000, (rows,), device="cuda")).loss
        ids = torch.randint(0, cfg.vocab_size, (rows, setup["seq"]), device="cuda")
        if setup.get("chunked_loss"):
            return chunked_loss(torch, model, ids)
        return model(input_ids=ids, labels=ids).loss

    accumulate = setup.get("accumulate") or 1
    for _ in range(3):
        for _ in range(accumulate):
            with cast, kept:
                loss = loss_of() / accumulate
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=not setup.get("keep_grads"))
    torch.cuda.synchronize()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in params),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model_config": json.loads(cfg.to_json_string(use_diff=False)) if cfg is not None else None,
    }


def jobs_of(prefixes):
    with open(os.path.join(HERE, "savings.json")) as f:
        pairs = json.load(f)
    jobs = {}
    for p in pairs:
        if prefixes and not any(p["id"].startswith(x) for x in prefixes):
            continue
        for setup in (p["before"], p["after"]):
            jobs[name_of(p["family"], p["config"], setup)] = {
                "family": p["family"],
                "config": p["config"],
                "setup": setup,
            }
    return jobs


def main():
    if sys.argv[1] == "--one":
        job = json.loads(sys.argv[3])
        try:
            job.update(measure(job))
        except Exception as e:  # kept beside the others: a miss must stay visible
            job["error"] = "%s: %s" % (type(e).__name__, str(e)[:500])
        with open(sys.argv[2], "w") as f:
            json.dump(job, f)
        return
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    start, jobs = time.time(), jobs_of(sys.argv[2:])

    def one(item):
        name, job = item
        path = os.path.join(out, name + ".json")
        if not os.path.exists(path):
            env = dict(
                os.environ, OMP_NUM_THREADS="2", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false"
            )
            subprocess.run(
                [sys.executable, os.path.abspath(__file__), "--one", path, json.dumps(job)],
                env=env,
                timeout=150,
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        if not os.path.exists(path):
            print("%6.1fs %s died" % (time.time() - start, name), flush=True)
            return
        with open(path) as f:
            r = json.load(f)
        print(
            "%6.1fs %s %s reserved %s %s"
            % (time.time() - start, name, job["family"], r.get("reserved"), r.get("error", "")),
            flush=True,
        )

    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(one, jobs.items()))


if __name__ == "__main__":
    main()
