"""101 setups of `memroom plan` on 53 architectures, asked and measured: setups.json has the two
lists, of models that differ most and of what people fine-tune with (adapters under autocast and
under sharding, quantised weights, optimizers in 8 bits). Asking needs no card; PYTHON has torch and
transformers and is asked only for models that memroom does not describe itself:

    python bench/gpu/setups.py ask MEMROOM PYTHON SAID.jsonl

On a machine with a card, three at a time, about ten minutes on an H200:

    PYTHONPATH=libs python bench/gpu/setups.py measure MEASURED.jsonl

`libs` holds peft 0.21, bitsandbytes 0.50 and torchao 0.18 and must be carried there with the
working tree (about 38 MiB); torch 2.11, transformers 5 and accelerate are on the machine. It is
made in the root of the repository by

    pip install --no-deps --target libs peft bitsandbytes torchao
    find libs/bitsandbytes -name '*.so' ! -name '*cuda13*' ! -name '*cpu*' -delete

A setup that is in the file is not measured again; one with an error is. `--only NAME,...` and
`--jobs N` choose, `--list finetuning` takes one list. `one NAME` runs a single setup in this
process and prints RESULT and its JSON. Then said and measured are compared, by reserved bytes and
by the interval:

    python bench/gpu/setups.py compare SAID.jsonl MEASURED.jsonl

Each setup runs four optimizer steps in a process of its own. As in recipes.py a fake process group
makes one process rank 0 of any world, and DDP runs with two real ones. Weights are zeros: memory
does not depend on them here, and making random ones takes longer than the steps. The exception is
a mixture of experts, whose router would send all tokens to the same experts.

A model is its model_type, the configuration and the class in transformers, what a batch holds, and
what is not default in the configuration. Under `fsdp` and `ddp` the weights are fp32 and what has
`r` gets its adapters before it is sharded. `padded` masks the ends of all samples but the first.
"""

import argparse
import concurrent.futures
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile

SECONDS = 150  # that one setup may take
STEPS = 4
SCRIPT = os.path.abspath(__file__)  # what a child process runs
HEADS = ("lm_head", "proj_out")  # output layers, which stay as they are in quantised models


def read_lists():
    """The cases by list, and the model of each case by the case's name."""
    with open(os.path.join(os.path.dirname(SCRIPT), "setups.json")) as file:
        lists = json.load(file)
    rows = {c["name"]: part["models"][c["model"]] for part in lists.values() for c in part["cases"]}
    return {name: part["cases"] for name, part in lists.items()}, rows


LISTS, MODELS = read_lists()


def cases(name=None):
    return [c for part, rows in LISTS.items() if name in (None, part) for c in rows]


def written(c):
    """The model's config.json."""
    model_type, _, kind, _, values = MODELS[c["name"]]
    values = dict(values)
    labels = values.pop("num_labels", None)
    if labels:  # config.json has the labels' names, not their number
        values["id2label"] = {str(i): "LABEL_%d" % i for i in range(labels)}
        values["label2id"] = {"LABEL_%d" % i: i for i in range(labels)}
    return {"model_type": model_type, "architectures": [kind], **values}


# ---------------------------------------------------------------- what memroom says

PRECISION = {"bf16": "bf16", "fp32": "fp32", "lora": "bf16", "fp16": "amp_fp16"}
OPTIMIZERS = {
    "lion": "lion_32bit",
    "adam8bit": "adamw8bit",
    "paged8bit": "paged_adamw_8bit",
    "lion8bit": "lion_8bit",
    "paged32": "paged_adamw_32bit",
    "fused": "adamw_fused",
    "loop": "adamw_loop",
    "ao8bit": "adamw_torch_8bit",
}


def flags(c):
    """What a user would ask memroom for this setup."""
    precision = PRECISION.get(c["kind"], "amp_bf16")
    if c.get("weights") == "float32":
        precision = "amp_bf16"
    opt = c.get("opt", "adamw")
    out = ["--batch", c["batch"], "--gpu", "H200", "--json", "--precision", precision]
    out += ["--optimizer", OPTIMIZERS.get(opt, opt)]
    for key, flag in (
        ("seq", "--seq"),
        ("target", "--target-seq"),
        ("r", "--lora-rank"),
        ("dropout", "--lora-dropout"),
        ("accumulate", "--accumulate"),
        ("world", "--ranks"),
        ("eval_batch", "--eval-batch"),
        ("image", "--image"),
        ("attn", "--attn"),
    ):
        out += [flag, c[key]] if c.get(key) else []
    for key, flag in (
        ("targets", "--lora-targets"),
        ("save", "--modules-to-save"),
        ("train", "--train-only"),
    ):
        if c.get(key):
            out += [flag, c[key] if isinstance(c[key], str) else ",".join(c[key])]
    for key, flag in (
        ("ckpt", "--checkpointing"),
        ("dora", "--dora"),
        ("dq", "--double-quant"),
        ("autocast", "--autocast"),
        ("clip", "--clip"),
        ("keep_grads", "--keep-grads"),
        ("channels_last", "--channels-last"),
        ("padded", "--padded"),
        ("no_upcast", "--no-upcast"),
    ):
        out += [flag] if c.get(key) else []
    out += ["--loss", "fused"] if c.get("fused") else []
    out += ["--offload", "parameters"] if c.get("offload") else []
    out += ["--no-reshard"] if c.get("reshard") is False else []
    if c["kind"] in ("qlora", "int8"):
        out += ["--load-in", "4bit" if c["kind"] == "qlora" else "8bit"]
    if "world" in c:
        out += ["--shard", "fsdp" if c["kind"] == "fsdp2" else c["kind"]]
    return [str(v) for v in out]


def ask(memroom, python, c, folder):
    """memroom's answer; a Python is named only where it knows nothing of the model without."""
    path = os.path.join(folder, c["model"] + ".json")
    with open(path, "w") as file:
        json.dump(written(c), file)
    row = {"name": c["name"], "flags": " ".join(flags(c))}
    for chosen in ("none", python):
        command = [memroom, "plan", path, *flags(c), "--python", chosen]
        done = subprocess.run(command, capture_output=True, text=True)
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {}
        if "reserved_peak" not in said:
            row["refused"] = (done.stderr + json.dumps(said))[-400:]
            continue
        kept = ("allocated_peak", "reserved_peak", "device_peak", "low", "high", "trainable")
        row.pop("refused", None)
        return row | {"python": chosen != "none"} | {k: said.get(k) for k in kept}
    return row


def ask_all(args):
    with tempfile.TemporaryDirectory() as folder, open(args.out, "w") as file:
        for c in cases(args.list):
            row = ask(args.memroom, args.python, c, folder)
            print(row["name"], row.get("reserved_peak"), row.get("refused", ""), flush=True)
            file.write(json.dumps(row) + "\n")
            file.flush()


# ---------------------------------------------------------------- what the card says


def described(c):
    import transformers

    _, config, kind, _, values = MODELS[c["name"]]
    config = getattr(transformers, config)(**copy.deepcopy(values))
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if c.get("attn"):
        config._attn_implementation = c["attn"]
    return getattr(transformers, kind), config


def without_random_weights(torch, kind):
    """Zeros for what would be drawn at random, but for what a router decides by."""
    if "Mixtral" in kind.__name__:
        return

    def zero(layer):
        for p in layer.parameters(recurse=False):
            p.data.zero_()

    for layer in (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Conv2d):
        layer.reset_parameters = zero
    kind._init_weights = lambda self, module: None


def blocks(model, torch):
    """The repeated layers: the lists of modules that are in no other list."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 3]
    inner = {id(n) for m in lists for n in m.modules() if n is not m}
    return [layer for m in lists if id(m) not in inner for layer in m]


def checkpoint(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def prepared(c, torch, model):
    """Adapters before sharding, or all frozen but a few layers."""
    if "train" in c:
        for name, p in model.named_parameters():
            p.requires_grad_(any(part in name for part in c["train"]))
    if "r" in c:
        from peft import get_peft_model

        model = get_peft_model(model, adapter(c))
    return model


def build(c, torch):
    """The model on the card and the dtype of its autocast."""
    kind, config = described(c)
    without_random_weights(torch, kind)
    half = torch.bfloat16
    if c["kind"] in ("fsdp1", "fsdp2"):
        return sharded_model(c, torch, kind, config), None
    model = kind(config)
    if c["kind"] in ("lora", "qlora", "int8"):
        return adapted(c, torch, model)
    model = prepared(c, torch, model)
    if c["kind"] == "bf16":
        model = model.to(half)
    model = model.to("cuda")
    if c.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    if c.get("ckpt"):
        checkpoint(model)
    if c["kind"] == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    if c["kind"] == "fp16":
        return model, torch.float16
    return model, half if c["kind"] in ("amp", "ddp") or c.get("autocast") else None


def sharded_model(c, torch, kind, config):
    import torch.distributed as dist
    from torch.distributed import fsdp
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    half = torch.bfloat16
    if c["kind"] == "fsdp1":
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        model = prepared(c, torch, kind(config))
        if c.get("ckpt"):
            checkpoint(model)
        way = "SHARD_GRAD_OP" if c.get("reshard") is False else "FULL_SHARD"
        return fsdp.FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(b) for b in blocks(model, torch)}),
            device_id=0,
            use_orig_params=True,
            sharding_strategy=fsdp.ShardingStrategy[way],
            mixed_precision=fsdp.MixedPrecision(param_dtype=half, reduce_dtype=torch.float32),
        )
    from torch.distributed.device_mesh import init_device_mesh

    with torch.device("meta"):
        model = prepared(c, torch, kind(config))
    if c.get("ckpt"):
        checkpoint(model)
    how = {
        "mesh": init_device_mesh("cuda", (c["world"],)),
        "mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32),
        "reshard_after_forward": c.get("reshard", True),
    }
    if c.get("offload"):
        how["offload_policy"] = fsdp.CPUOffloadPolicy()
    for layer in blocks(model, torch):
        fsdp.fully_shard(layer, **how)
    fsdp.fully_shard(model, **how)
    model.to_empty(device="cpu" if c.get("offload") else "cuda")
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.zeros_like(buffer, device="cuda")
    return model


def adapted(c, torch, model):
    from peft import get_peft_model, prepare_model_for_kbit_training

    model = model.to(getattr(torch, c.get("weights", "bfloat16")))
    if c["kind"] != "lora":
        quantize(model, c, torch)
    model = model.to("cuda")
    if c["kind"] != "lora":
        model.is_loaded_in_4bit = c["kind"] == "qlora"
        model.is_loaded_in_8bit = c["kind"] == "int8"
        if not c.get("no_upcast"):
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = get_peft_model(model, adapter(c))
    if c.get("ckpt"):
        model.enable_input_require_grads()
        checkpoint(model)
    return model, torch.bfloat16 if c["kind"] != "lora" or c.get("amp") else None


def adapter(c):
    from peft import LoraConfig

    return LoraConfig(
        r=c["r"],
        lora_alpha=2 * c["r"],
        target_modules=c["targets"],
        lora_dropout=c.get("dropout", 0.0),
        use_dora=c.get("dora", False),
        modules_to_save=c.get("save"),
        task_type=c.get("task"),
    )


def quantize(module, c, torch):
    """4 or 8 bit layers in place of the linear ones, the output layer left as it is."""
    import bitsandbytes as bnb

    for name, child in list(module.named_children()):
        if not isinstance(child, torch.nn.Linear) or name in HEADS:
            quantize(child, c, torch)
            continue
        biased, shape = child.bias is not None, (child.in_features, child.out_features)
        if c["kind"] == "qlora":
            how = {"quant_type": "nf4", "compress_statistics": c.get("dq", False)}
            new = bnb.nn.Linear4bit(*shape, bias=biased, compute_dtype=torch.bfloat16, **how)
            new.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, **how)
        else:
            how = {"has_fp16_weights": False}
            new = bnb.nn.Linear8bitLt(*shape, bias=biased, **how)
            new.weight = bnb.nn.Int8Params(child.weight.data, requires_grad=False, **how)
        if biased:
            new.bias = child.bias
        setattr(module, name, new)


def optimizer(name, parameters, torch):
    packed = {
        "lion": "Lion",
        "lion8bit": "Lion8bit",
        "adam8bit": "AdamW8bit",
        "paged8bit": "PagedAdamW8bit",
        "paged32": "PagedAdamW32bit",
    }
    if name in packed:
        from bitsandbytes import optim

        return getattr(optim, packed[name])(parameters, lr=1e-4)
    if name == "ao8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit(parameters, lr=1e-4)
    kinds = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4),
        "fused": lambda: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        "loop": lambda: torch.optim.AdamW(parameters, lr=1e-4, foreach=False),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=1e-3),
        "sgdm": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=1e-4),
        "adafactor": lambda: torch.optim.Adafactor(parameters, lr=1e-3),
    }
    return kinds[name]()


def given(c, torch, n):
    """A batch of n on the card."""
    config, what = described(c)[1], MODELS[c["name"]][3]
    none = torch.zeros(n, dtype=torch.long, device="cuda")
    side = c.get("image", 224)
    images = (
        torch.randn(n, 3, side, side).to("cuda") if what in ("image", "areas", "pairs") else None
    )
    if c.get("channels_last"):
        images = images.contiguous(memory_format=torch.channels_last)
    if what == "image":
        batch = {"pixel_values": images, "labels": none}
    elif what == "areas":
        areas = torch.zeros(n, side, side, dtype=torch.long, device="cuda")
        batch = {"pixel_values": images, "labels": areas}
    elif what == "sound":
        labels = torch.randint(1, config.vocab_size, (n, 40), device="cuda")
        batch = {"input_values": torch.randn(n, c["seq"], device="cuda"), "labels": labels}
    elif what == "speech":
        labels = torch.randint(0, config.vocab_size, (n, c["seq"]), device="cuda")
        batch = {"input_features": torch.randn(n, 80, 3000, device="cuda"), "labels": labels}
    else:
        batch = text(c, torch, n, getattr(config, "text_config", config).vocab_size)
        if what == "pairs":
            batch |= {"pixel_values": images, "return_loss": True}
        elif what == "class":
            batch["labels"] = none.float() if config.num_labels == 1 else none
        elif what == "tags":
            batch["labels"] = torch.zeros_like(batch["input_ids"])
        elif what == "span":
            batch |= {"start_positions": none, "end_positions": none + 1}
        elif "target" in c:
            batch["labels"] = torch.randint(
                3, config.vocab_size - 1, (n, c["target"]), device="cuda"
            )
        else:
            batch["labels"] = batch["input_ids"]
    return batch


def text(c, torch, n, vocab):
    ids = torch.randint(3, vocab - 1, (n, c["seq"]), device="cuda")
    mask = torch.ones_like(ids)
    if c.get("padded"):
        for at in range(1, n):
            mask[at, c["seq"] - 1 - at * c["seq"] // (2 * n) :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def fused_loss(model, batch, torch):
    """Head and cross entropy on a slice of the tokens at a time; gradients are made on the way."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight, target):
            rows, width = hidden.shape
            parts = -(-weight.size(0) // width)
            step = -(-rows // parts)
            grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
            total = torch.zeros((), device=hidden.device)
            for at in range(0, rows, step):
                h, t = hidden[at : at + step], target[at : at + step]
                logits = (h @ weight.t()).float()
                total += torch.nn.functional.cross_entropy(logits, t, reduction="sum") / rows
                logits = logits.softmax(-1)
                logits[torch.arange(len(t), device=t.device), t] -= 1
                logits = (logits / rows).to(h.dtype)
                grad_hidden[at : at + step] = logits @ weight
                grad_weight += logits.t() @ h
            ctx.save_for_backward(grad_hidden, grad_weight)
            return total

        @staticmethod
        def backward(ctx, grad):
            hidden, weight = ctx.saved_tensors
            return hidden * grad, weight * grad, None

    ids = batch["input_ids"]
    out = model.model(input_ids=ids, attention_mask=batch["attention_mask"])
    hidden = out.last_hidden_state[:, :-1].flatten(0, 1)
    return Fused.apply(hidden, model.lm_head.weight, ids[:, 1:].flatten())


def join_ranks(c):
    """Makes this process one of two that train on this card; the first starts the other."""
    import torch.distributed as dist

    rank = int(os.environ.get("RECIPE_RANK", "0"))
    meeting = os.environ.get("RECIPE_MEETING") or tempfile.mktemp()
    other = None
    if rank == 0:
        env = dict(os.environ, RECIPE_RANK="1", RECIPE_MEETING=meeting)
        command = [sys.executable, SCRIPT, "one", c["name"]]
        other = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    return other


def measure(c):
    import torch

    torch.manual_seed(0)
    other = join_ranks(c) if c["kind"] == "ddp" else None
    model, half = build(c, torch)
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = optimizer(c.get("opt", "adamw"), trained, torch)
    scaler = torch.amp.GradScaler("cuda", enabled=half is torch.float16)
    loaded = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        model.train()
        for _ in range(c.get("accumulate", 1)):
            batch = given(c, torch, c["batch"])
            cast(c, torch, batch, half)
            with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
                fused = c.get("fused")
                loss = fused_loss(model, batch, torch) if fused else model(**batch).loss
            scaler.scale(loss / c.get("accumulate", 1)).backward()
        if c.get("clip"):
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=not c.get("keep_grads"))
        if c.get("eval_batch"):
            model.eval()
            seen = given(c, torch, c["eval_batch"])
            cast(c, torch, seen, half)
            cast_too = torch.autocast("cuda", half or torch.bfloat16, enabled=bool(half))
            with torch.no_grad(), cast_too:
                model(**seen)
            del seen
        torch.cuda.synchronize()
    if other:
        other.wait(60)
    return dict(
        c,
        cfg=written(c),
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        allocated_after_load=loaded,
        trained=sum(p.numel() for p in trained),
        torch=torch.__version__,
    )


def cast(c, torch, batch, half):
    """Pictures and sound come in the type of the weights where there is no autocast."""
    if half is None and c["kind"] in ("bf16", "lora") and "weights" not in c:
        for key in ("pixel_values", "input_values", "input_features"):
            if key in batch:
                batch[key] = batch[key].to(torch.bfloat16)


def child(name):
    command = [sys.executable, "-W", "ignore", SCRIPT, "one", name]
    env = dict(os.environ, OMP_NUM_THREADS="4")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=env)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": "took longer than %d s" % SECONDS}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT"):
            return json.loads(line[6:])
    return {"name": name, "error": done.stderr[-800:]}


def measure_all(args):
    done = set()
    if os.path.exists(args.out):
        done = {row["name"] for row in read(args.out).values() if "error" not in row}
    names = [c["name"] for c in cases(args.list) if c["name"] not in done]
    if args.only:
        names = [n for n in names if n in args.only.split(",")]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        started = [pool.submit(child, name) for name in names]
        for one in concurrent.futures.as_completed(started):
            row = one.result()
            with open(args.out, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["name"], row.get("reserved"), row.get("error", "")[-300:], flush=True)


# ---------------------------------------------------------------- both


def read(path):
    """Rows by name; the last of a name counts."""
    with open(path) as file:
        return {row["name"]: row for row in map(json.loads, file)}


def compare(args):
    """Reserved bytes said against measured, and whether the interval holds the truth."""
    said, measured = read(args.said), read(args.measured)
    off, outside = [], []
    for name, row in measured.items():
        told = said.get(name, {})
        if "error" in row or not told.get("reserved_peak"):
            print("%-28s %s" % (name, (row.get("error") or told.get("refused", ""))[-90:]))
            continue
        context = told["device_peak"] - told["reserved_peak"]
        held = told["low"] <= row["reserved"] + context <= told["high"]
        off.append(100 * (told["reserved_peak"] / row["reserved"] - 1))
        outside += [] if held else [name]
        allocated = 100 * (told["allocated_peak"] / row["allocated"] - 1)
        line = (name, row["reserved"] >> 20, off[-1], allocated, "" if held else "outside")
        print("%-28s %7d MiB reserved %+7.2f %% allocated %+7.2f %% %s" % line)
    sizes_off = sorted(map(abs, off))
    if sizes_off:
        ninety = sizes_off[min(len(sizes_off) - 1, int(0.9 * len(sizes_off)))]
        print(
            "%d setups: median %.2f %%, 90th percentile %.2f %%, outside the interval: %s"
            % (len(off), statistics.median(sizes_off), ninety, ", ".join(outside) or "none")
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("ask")
    for name in ("memroom", "python", "out"):
        part.add_argument(name)
    part = parts.add_parser("measure")
    part.add_argument("out")
    part.add_argument("--only", default="")
    part.add_argument("--jobs", type=int, default=3)
    part = parts.add_parser("one")
    part.add_argument("name")
    part = parts.add_parser("compare")
    part.add_argument("said")
    part.add_argument("measured")
    for name in ("ask", "measure"):
        parts.choices[name].add_argument("--list", choices=list(LISTS))
    args = parser.parse_args()
    if args.part == "one":
        print("RESULT" + json.dumps(measure(next(c for c in cases() if c["name"] == args.name))))
        return
    {"ask": ask_all, "measure": measure_all, "compare": compare}[args.part](args)


if __name__ == "__main__":
    main()
