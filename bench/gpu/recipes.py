"""Measures on one card what people train with: LoRA, 4 and 8 bit weights, 8-bit optimizers, sharded
and compiled models. A fake process group makes one process rank 0 of any world: collectives move
nothing, memory is allocated as in that world. What the communication library takes is not in it.
DistributedDataParallel needs sums that are there: two processes share the card for it, with gloo.

    python bench/gpu/recipes.py OUT.jsonl [--only NAME,...] [--traces FOLDER] [--jobs 6]

Cases and models are in recipes.json. Each case runs in a process of its own and writes one line. A
case that is in OUT is not run again. Needs peft, bitsandbytes and deepspeed on PYTHONPATH for the
cases that use them.
"""

import argparse
import concurrent.futures
import gzip
import json
import os
import pickle
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def read_cases():
    """The models by name (the classes of their configuration and their own in transformers, what
    differs from the defaults) and the cases. `tiny` ones are recorded request by request; `host`
    means that weights are cast before they go to the card.
    """
    with open(os.path.join(HERE, "recipes.json")) as file:
        table = json.load(file)
    return table["models"], table["cases"]


MODELS, CASES = read_cases()


def described(c):
    """Class and configuration of a case's model."""
    import transformers

    config, kind, values = MODELS[c["model"]]
    return getattr(transformers, kind), getattr(transformers, config)(**values, use_cache=False)


def blocks(model):
    """The repeated layers of a model, which are sharded one by one."""
    names = [m for m in model.modules() if isinstance(m, __import__("torch").nn.ModuleList)]
    return list(max(names, key=lambda m: sum(p.numel() for p in m.parameters())))


def build(c, torch):
    """The model of a case on the card, and the dtype of its autocast."""
    kind_of_model, config = described(c)
    kind, half = c["kind"], torch.bfloat16
    if kind in ("fsdp1", "fsdp2"):
        return sharded(c, torch, kind_of_model, config), None
    if kind in ("lora", "qlora", "int8"):
        return adapted(c, torch, kind_of_model, config)
    if kind == "ddp":
        model = kind_of_model(config).to("cuda")
        return torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=c.get("view", False)
        ), half
    model = kind_of_model(config)
    if kind == "bf16" and c.get("host"):
        model = model.to(half)
    model = model.to("cuda")
    if kind == "bf16":
        model = model.to(half)
    if c.get("ckpt"):
        checkpoint(model)
    return model, half if kind == "amp" or c.get("autocast") else None


def checkpoint(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def sharded(c, torch, kind_of_model, config):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    half = None if c.get("full") or c.get("stored") else torch.bfloat16
    if c["kind"] == "fsdp1":
        from torch.distributed import fsdp
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        model = kind_of_model(config)
        if c.get("ckpt"):
            checkpoint(model)
        return fsdp.FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(blocks(model)[0])}),
            device_id=0,
            use_orig_params=True,
            sharding_strategy=fsdp.ShardingStrategy[c.get("strategy", "FULL_SHARD")],
            mixed_precision=fsdp.MixedPrecision(param_dtype=half, reduce_dtype=torch.float32),
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device("meta"):
        model = kind_of_model(config).to(getattr(torch, c.get("stored", "float32")))
        if "r" in c:
            model = with_adapters(c, model)
    if c.get("ckpt"):
        checkpoint(model)
    summed = None if c.get("stored") else torch.float32
    how = {
        "mesh": init_device_mesh("cuda", (c["world"],)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=summed),
        "reshard_after_forward": c.get("reshard", True),
    }
    for layer in blocks(model):
        fully_shard(layer, **how)
    fully_shard(model, **how)
    model.to_empty(device="cuda")
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.zeros_like(buffer, device="cuda")
    return model


def adapted(c, torch, kind_of_model, config):
    from peft import prepare_model_for_kbit_training

    model = kind_of_model(config).to(getattr(torch, c.get("weights", "bfloat16")))
    if c["kind"] != "lora":
        quantize(model, c, torch)
    model = model.to("cuda")
    if c["kind"] != "lora":
        model.is_loaded_in_4bit = c["kind"] == "qlora"
        model.is_loaded_in_8bit = c["kind"] == "int8"
        if c.get("prepare", True):
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = with_adapters(c, model)
    if c.get("ckpt"):
        model.enable_input_require_grads()
        checkpoint(model)
    half = c["kind"] != "lora" or c.get("amp") or c.get("autocast")
    return model, torch.bfloat16 if half else None


def with_adapters(c, model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        model,
        LoraConfig(
            r=c["r"],
            lora_alpha=32,
            target_modules=c["targets"],
            lora_dropout=c.get("dropout", 0.0),
            use_dora=c.get("dora", False),
            modules_to_save=c.get("save"),
            task_type=c.get("task", "CAUSAL_LM"),
        ),
    )


def quantize(module, c, torch):
    """Puts 4 or 8 bit layers in place of the linear ones, the output layer left as it is."""
    import bitsandbytes as bnb

    for name, child in list(module.named_children()):
        if not isinstance(child, torch.nn.Linear) or name == "lm_head":
            quantize(child, c, torch)
            continue
        sizes = (child.in_features, child.out_features)
        if c["kind"] == "qlora":
            quant, dq = c.get("quant", "nf4"), c.get("dq", False)
            new = bnb.nn.Linear4bit(
                *sizes,
                bias=child.bias is not None,
                compute_dtype=torch.bfloat16,
                quant_type=quant,
                compress_statistics=dq,
            )
            new.weight = bnb.nn.Params4bit(
                child.weight.data, requires_grad=False, quant_type=quant, compress_statistics=dq
            )
        else:
            biased = child.bias is not None
            new = bnb.nn.Linear8bitLt(*sizes, bias=biased, has_fp16_weights=False)
            new.weight = bnb.nn.Int8Params(
                child.weight.data, requires_grad=False, has_fp16_weights=False
            )
        if child.bias is not None:
            new.bias = child.bias
        setattr(module, name, new)


class Several:
    """Optimizers that share a model."""

    def __init__(self, *parts):
        self.parts = parts

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()


def optimizer(name, parameters, torch, second=False):
    if name in ("adam8bit", "paged8bit", "lion8bit", "lion"):
        import bitsandbytes as bnb

        kinds = {
            "lion": bnb.optim.Lion,
            "adam8bit": bnb.optim.AdamW8bit,
            "paged8bit": bnb.optim.PagedAdamW8bit,
            "lion8bit": bnb.optim.Lion8bit,
        }
        return kinds[name](parameters, lr=1e-4)
    if name == "galore":  # as Trainer makes it with optim_target_modules: attention and MLP
        from galore_torch import GaLoreAdamW

        inner = [p for p in parameters if p.ndim == 2 and max(p.shape) < 16384]
        rest = [p for p in parameters if not any(p is q for q in inner)]
        how = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
        return GaLoreAdamW([{"params": rest}, {"params": inner, **how}], lr=1e-4)
    if name == "ao8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit(parameters, lr=1e-4)
    if name == "adamw_fused":
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    if name == "muon" and second:  # vectors are left to AdamW
        return Several(
            torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=1e-3),
            torch.optim.AdamW([p for p in parameters if p.ndim != 2], lr=1e-4),
        )
    if name == "muon":
        return torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=1e-3)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-3)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-4)


def deepspeed_engine(c, torch):
    """DeepSpeed's engine around a model, as rank 0 of a world of processes that are not there."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE=str(c["world"]))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    import deepspeed

    kind_of_model, config = described(c)
    model = kind_of_model(config)
    if c.get("ckpt"):
        checkpoint(model)
    zero = {"stage": int(c["kind"][-1])}
    if c.get("bucket"):
        zero.update(reduce_bucket_size=c["bucket"], allgather_bucket_size=c["bucket"])
    if c.get("overlap"):
        zero["overlap_comm"] = True
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        config={
            "train_micro_batch_size_per_gpu": c["batch"],
            "gradient_accumulation_steps": c.get("accumulate", 1),
            "bf16": {"enabled": True},
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
        },
    )
    return engine


def measure_deepspeed(c, traces):
    import torch

    torch.manual_seed(0)
    record = traces and c["model"] == "tiny"
    if record:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    engine = deepspeed_engine(c, torch)
    loaded = torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    engine.train()
    for _ in range(4):
        for _ in range(c.get("accumulate", 1)):
            ids = torch.randint(
                0, engine.module.config.vocab_size, (c["batch"], c["seq"]), device="cuda"
            )
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
        torch.cuda.synchronize()
    return outcome(c, torch, traces if record else None, loaded)


def join_ranks(c, torch):
    """Makes this process one of two that train on this card; the first starts the other."""
    import torch.distributed as dist

    rank = int(os.environ.get("RECIPE_RANK", "0"))
    meeting = os.environ.get("RECIPE_MEETING") or tempfile.mktemp()
    other = None
    if rank == 0:
        env = dict(os.environ, RECIPE_RANK="1", RECIPE_MEETING=meeting)
        other = subprocess.Popen(
            [sys.executable, __file__, "-", "--one", c["name"]], env=env, stdout=subprocess.DEVNULL
        )
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    return other


def measure(c, traces):
    import torch

    torch.manual_seed(0)
    record = traces and (c["model"] == "tiny" or c["name"] in RECORDED)
    other = join_ranks(c, torch) if c["kind"] == "ddp" else None
    if record:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    model, half = build(c, torch)
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = optimizer(c.get("opt", "adamw"), trained, torch, c["name"].startswith("2-"))
    loaded = torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    model.train()
    run = torch.compile(model) if c.get("compile") else model
    for _ in range(4):
        for _ in range(c.get("accumulate", 1)):
            given = batch(c, torch)
            with torch.autocast("cuda", half, enabled=half is not None):
                loss = run(**given).loss
            loss.backward()
        opt.step()
        opt.zero_grad()
        torch.cuda.synchronize()
    if other:
        other.wait(60)
    return outcome(c, torch, traces if record else None, loaded, trained)


def batch(c, torch):
    """A batch on the card: tokens or images, and their labels."""
    kind, config = described(c)
    n = c["batch"]
    if not c["seq"]:
        images = torch.randn(n, 3, config.image_size, config.image_size).to("cuda")
        return {"pixel_values": images, "labels": torch.zeros(n, dtype=torch.long, device="cuda")}
    ids = torch.randint(0, config.vocab_size, (n, c["seq"]), device="cuda")
    given = {"input_ids": ids, "labels": ids}
    if c.get("mask"):
        given["attention_mask"] = torch.ones_like(ids)
    if kind.__name__.endswith("Classification"):
        given["labels"] = torch.zeros(n, dtype=torch.long, device="cuda")
    return given


# Cases that are recorded request by request beside the tiny ones.
RECORDED = ("2-compile-smol", "2-compile-vit", "2-compile-bert", "2-compile-mistral-mask")


def outcome(c, torch, traces, loaded, trained=()):
    """The measured peaks as a line; the recording goes to its file."""
    if traces:
        with gzip.open(os.path.join(traces, c["name"] + ".pickle.gz"), "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
    return dict(
        c,
        cfg=MODELS[c["model"]][2],
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        allocated_after_load=loaded[0],
        reserved_after_load=loaded[1],
        trained=sum(p.numel() for p in trained),
        torch=torch.__version__,
    )


def child(name, traces):
    command = [sys.executable, __file__, "-", "--one", name]
    if traces:
        command += ["--traces", traces]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": "took longer than 240 s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT"):
            return json.loads(line[6:])
    return {"name": name, "error": done.stderr[-600:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", default="")
    parser.add_argument("--traces")
    parser.add_argument("--one")
    parser.add_argument("--jobs", type=int, default=6)
    args = parser.parse_args()
    if args.one:
        chosen = next(c for c in CASES if c["name"] == args.one)
        how = measure_deepspeed if chosen["kind"].startswith("zero") else measure
        print("RESULT" + json.dumps(how(chosen, args.traces)))
        return
    done = set()
    if os.path.exists(args.out):
        with open(args.out) as file:
            done = {row["name"] for row in map(json.loads, file) if "error" not in row}
    names = [c["name"] for c in CASES if c["name"] not in done]
    if args.only:
        names = [n for n in names if n in args.only.split(",")]
    if args.traces:
        os.makedirs(args.traces, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda n: child(n, args.traces), names):
            with open(args.out, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["name"], row.get("reserved"), row.get("error", "")[-200:], flush=True)


if __name__ == "__main__":
    main()
