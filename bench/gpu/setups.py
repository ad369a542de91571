"""Setups of `memroom plan` on 21 architectures, asked and measured. Asking needs no card; PYTHON
has torch and transformers and is asked only for models that memroom does not describe itself:

    python bench/gpu/setups.py ask MEMROOM PYTHON SAID.jsonl

On a machine with a card, three at a time, about four minutes on an H200:

    PYTHONPATH=libs python bench/gpu/setups.py measure MEASURED.jsonl

`libs` holds peft 0.21, bitsandbytes 0.50 and torchao 0.18 and must be carried there with the
working tree (about 38 MiB); torch 2.11, transformers 5 and accelerate are on the machine. It is
made in the root of the repository by

    pip install --no-deps --target libs peft bitsandbytes torchao
    find libs/bitsandbytes -name '*.so' ! -name '*cuda13*' ! -name '*cpu*' -delete

A setup that is in the file is not measured again; one with an error is. `--only NAME,...` and
`--jobs N` choose. Then said and measured are compared, by reserved bytes and by the interval:

    python bench/gpu/setups.py compare SAID.jsonl MEASURED.jsonl

Each setup runs four optimizer steps in a process of its own. As in recipes.py a fake process group
makes one process rank 0 of any world, and DDP runs with two real ones. Weights are zeros: memory
does not depend on them here, and making random ones takes longer than the steps.
"""

import argparse
import concurrent.futures
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


def use(script, **own):
    """Lets another list drive its setups from here: what it gives takes the place of mine."""
    unknown = sorted(set(own) - set(globals()))
    if unknown:
        raise ValueError("nothing here is called " + ", ".join(unknown))
    globals().update(own, SCRIPT=os.path.abspath(script))


def sizes(hidden, inner, layers, heads, kv=None, vocab=None, **more):
    given = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        **more,
    }
    return {k: v for k, v in given.items() if v is not None}


def t5(**more):
    return {
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 8,
        "num_heads": 12,
        "vocab_size": 32128,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
        **more,
    }


WHISPER = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "vocab_size": 51865,
}
IMAGES = sizes(768, 3072, 12, 12, image_size=224, patch_size=14)

# By name: the configuration and the class in transformers, the model_type, what is not default.
MODELS = {
    "phi3": ("Phi3", "ForCausalLM", "phi3", sizes(1536, 4096, 12, 16, 16, 32064, pad_token_id=0)),
    "olmo2": (
        "Olmo2",
        "ForCausalLM",
        "olmo2",
        sizes(1024, 4096, 12, 16, 16, 100352, pad_token_id=1),
    ),
    "granite": (
        "Granite",
        "ForCausalLM",
        "granite",
        sizes(1536, 4096, 16, 24, 8, 49152, tie_word_embeddings=True),
    ),
    "starcoder2": (
        "Starcoder2",
        "ForCausalLM",
        "starcoder2",
        sizes(1536, 6144, 12, 12, 2, 49152, sliding_window=None),
    ),
    "gemma2": (
        "Gemma2",
        "ForCausalLM",
        "gemma2",
        sizes(1152, 4608, 10, 8, 4, 64000, head_dim=128, sliding_window=512),
    ),
    "stablelm": ("StableLm", "ForCausalLM", "stablelm", sizes(1024, 2816, 16, 16, 16, 50304)),
    "pythia": (
        "GPTNeoX",
        "ForCausalLM",
        "gpt_neox",
        sizes(768, 3072, 12, 12, vocab=50304, rotary_pct=0.25),
    ),
    "bloom": (
        "Bloom",
        "ForCausalLM",
        "bloom",
        {"hidden_size": 1024, "n_layer": 16, "n_head": 16, "vocab_size": 65024},
    ),
    "qwen3": (
        "Qwen3",
        "ForCausalLM",
        "qwen3",
        sizes(896, 2560, 14, 14, 2, 151936, head_dim=64, tie_word_embeddings=True),
    ),
    "modernbert": ("ModernBert", "ForMaskedLM", "modernbert", sizes(768, 1152, 22, 12)),
    "modernbert-cls": (
        "ModernBert",
        "ForSequenceClassification",
        "modernbert",
        sizes(768, 1152, 22, 12),
    ),
    "deberta": (
        "DebertaV2",
        "ForSequenceClassification",
        "deberta-v2",
        sizes(
            768,
            3072,
            12,
            12,
            vocab=64000,
            relative_attention=True,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            max_relative_positions=-1,
            type_vocab_size=0,
        ),
    ),
    "roberta": ("Roberta", "ForTokenClassification", "roberta", sizes(768, 3072, 12, 12)),
    "t5": ("T5", "ForConditionalGeneration", "t5", t5()),
    "bart": (
        "Bart",
        "ForConditionalGeneration",
        "bart",
        {
            "d_model": 768,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "vocab_size": 50265,
        },
    ),
    "whisper": ("Whisper", "ForConditionalGeneration", "whisper", WHISPER),
    "wav2vec2": ("Wav2Vec2", "ForCTC", "wav2vec2", sizes(768, 3072, 12, 12, vocab=32)),
    "hubert": ("Hubert", "ForCTC", "hubert", sizes(768, 3072, 12, 12, vocab=32)),
    "dinov2": (
        "Dinov2",
        "ForImageClassification",
        "dinov2",
        {k: v for k, v in IMAGES.items() if k != "intermediate_size"},
    ),
    "siglip": ("Siglip", "ForImageClassification", "siglip", {"vision_config": IMAGES}),
    "convnext": (
        "ConvNext",
        "ForImageClassification",
        "convnext",
        {"depths": [3, 3, 9, 3], "hidden_sizes": [96, 192, 384, 768], "image_size": 224},
    ),
}
AUDIO = ("wav2vec2", "hubert")
PICTURES = ("dinov2", "siglip", "convnext")


def case(name, kind, model, batch, seq, **more):
    return dict(name="3-" + name, kind=kind, model=model, batch=batch, seq=seq, **more)


def cases():
    return adapters() + packed() + optimizers() + plain() + sharded()


def adapters():
    every, qv = "all-linear", ["q_proj", "v_proj"]
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    joined = ["qkv_proj", "o_proj"]
    small = {"weights": "float32", "amp": True}
    return [
        case("lora-phi3-qkv", "lora", "phi3", 4, 1024, targets=joined, r=8),
        case("lora-olmo2-drop", "lora", "olmo2", 4, 1024, targets=every, r=128, dropout=0.1),
        case("lora-granite-ckpt", "lora", "granite", 8, 2048, targets=every, r=4, ckpt=True),
        case("dora-starcoder2", "lora", "starcoder2", 2, 1024, targets=attention, r=32, dora=True),
        case(
            "lora-stablelm-save",
            "lora",
            "stablelm",
            4,
            768,
            targets=qv,
            r=16,
            save=["embed_tokens", "lm_head"],
        ),
        case("lora-bloom", "lora", "bloom", 4, 512, targets=["query_key_value"], r=32),
        case("lora-t5-amp", "lora", "t5", 8, 512, targets=["q", "v"], r=16, target=128, **small),
        case(
            "lora-modernbert-cls",
            "lora",
            "modernbert-cls",
            16,
            512,
            targets=["Wqkv", "Wo"],
            r=16,
            save=["classifier"],
            task="SEQ_CLS",
            **small,
        ),
        case("lora-dinov2", "lora", "dinov2", 32, 0, targets=["query", "value"], r=16, **small),
    ]


def packed():
    every = "all-linear"
    return [
        case("qlora-granite", "qlora", "granite", 4, 1024, targets=every, r=64, dq=True, ckpt=True),
        case("qlora-phi3-drop", "qlora", "phi3", 2, 1024, targets=every, r=16, dropout=0.05),
        case("int8-stablelm", "int8", "stablelm", 4, 512, targets=["q_proj", "v_proj"], r=8),
    ]


def optimizers():
    return [
        case("adafactor-t5", "amp", "t5", 4, 512, target=512, opt="adafactor"),
        case("lion-starcoder2", "bf16", "starcoder2", 2, 1024, opt="lion"),
        case("sgdm-dinov2", "amp", "dinov2", 48, 0, opt="sgdm"),
        case("adam8bit-phi3", "bf16", "phi3", 2, 2048, opt="adam8bit"),
        case("paged8bit-olmo2", "amp", "olmo2", 2, 1024, opt="paged8bit"),
        case("rmsprop-wav2vec2", "fp32", "wav2vec2", 4, 160000, opt="rmsprop"),
        case("fused-granite-autocast", "bf16", "granite", 4, 1024, opt="fused", autocast=True),
        case("loop-deberta", "amp", "deberta", 16, 256, opt="loop"),
        case("ao8bit-bloom", "bf16", "bloom", 2, 1024, opt="ao8bit"),
    ]


def plain():
    return [
        case("gemma2", "bf16", "gemma2", 2, 1024),
        case("modernbert-mlm", "amp", "modernbert", 16, 512),
        case("deberta-fp32", "fp32", "deberta", 8, 384),
        case("t5-ckpt", "bf16", "t5", 16, 768, target=256, ckpt=True),
        case("bart-amp", "amp", "bart", 8, 512, target=128),
        case("whisper-amp", "amp", "whisper", 8, 256),  # tokens of the text
        case("wav2vec2-amp", "amp", "wav2vec2", 8, 240000),
        case("hubert-ckpt", "bf16", "hubert", 16, 120000, ckpt=True),
        case("siglip-amp", "amp", "siglip", 48, 0),
        case("convnext-last", "amp", "convnext", 64, 0, channels_last=True),
        case("roberta-fp16-clip", "fp16", "roberta", 32, 256, clip=True, accumulate=2),
        case("stablelm-keep-grads", "bf16", "stablelm", 2, 1024, keep_grads=True),
        case("granite-eval", "bf16", "granite", 2, 1024, eval_batch=12),
        case("qwen3-fused-loss", "bf16", "qwen3", 4, 2048, fused=True),
    ]


def sharded():
    return [
        case("fsdp2-olmo2-w32", "fsdp2", "olmo2", 4, 1024, world=32),
        case("fsdp2-phi3-w2-keep", "fsdp2", "phi3", 4, 2048, world=2, reshard=False, ckpt=True),
        case("fsdp2-granite-w8-offload", "fsdp2", "granite", 2, 1024, world=8, offload=True),
        case("fsdp2-modernbert-w16", "fsdp2", "modernbert", 16, 512, world=16, accumulate=2),
        case("fsdp1-starcoder2-w32", "fsdp1", "starcoder2", 2, 1024, world=32),
        case("fsdp1-bart-w4-keep", "fsdp1", "bart", 8, 512, world=4, target=128, reshard=False),
        case("ddp-pythia-acc", "ddp", "pythia", 4, 1024, world=2, accumulate=2),
    ]


def written(c):
    """The model's config.json."""
    prefix, kind, model_type, values = MODELS[c["model"]]
    if not kind.startswith("For"):
        raise ValueError(kind)
    return {"model_type": model_type, "architectures": [prefix + kind], **values}


# ---------------------------------------------------------------- what memroom says

PRECISION = {"bf16": "bf16", "fp32": "fp32", "lora": "bf16", "fp16": "amp_fp16"}
OPTIMIZERS = {
    "lion": "lion_32bit",
    "adam8bit": "adamw8bit",
    "paged8bit": "paged_adamw_8bit",
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
    ):
        out += [flag, c[key]] if c.get(key) else []
    for key, flag in (("targets", "--lora-targets"), ("save", "--modules-to-save")):
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
        for c in cases():
            row = ask(args.memroom, args.python, c, folder)
            print(row["name"], row.get("reserved_peak"), row.get("refused", ""), flush=True)
            file.write(json.dumps(row) + "\n")
            file.flush()


# ---------------------------------------------------------------- what the card says


def described(c):
    import transformers

    prefix, kind, _, values = MODELS[c["model"]]
    if c["model"] == "siglip":
        config = transformers.SiglipConfig(vision_config=dict(values["vision_config"]))
    else:
        names = {"modernbert-cls": "ModernBertConfig"}
        config = getattr(transformers, names.get(c["model"], prefix + "Config"))(**values)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return getattr(transformers, prefix + kind), config


def without_random_weights(torch, kind):
    """Zeros for what would be drawn at random."""

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
    """The model before it is placed or sharded; for lists that freeze or adapt it here."""
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
    if name in ("lion", "adam8bit", "paged8bit"):
        from bitsandbytes import optim

        kinds = {"lion": "Lion", "adam8bit": "AdamW8bit", "paged8bit": "PagedAdamW8bit"}
        return getattr(optim, kinds[name])(parameters, lr=1e-4)
    if name == "ao8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit(parameters, lr=1e-4)
    kinds = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4),
        "fused": lambda: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        "loop": lambda: torch.optim.AdamW(parameters, lr=1e-4, foreach=False),
        "sgdm": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=1e-4),
        "adafactor": lambda: torch.optim.Adafactor(parameters, lr=1e-3),
    }
    return kinds[name]()


def given(c, torch, n):
    """A batch of n on the card."""
    config = described(c)[1]
    if c["model"] in PICTURES:
        images = torch.randn(n, 3, 224, 224).to("cuda")
        if c.get("channels_last"):
            images = images.contiguous(memory_format=torch.channels_last)
        return {"pixel_values": images, "labels": torch.zeros(n, dtype=torch.long, device="cuda")}
    if c["model"] in AUDIO:
        labels = torch.randint(1, config.vocab_size, (n, 40), device="cuda")
        return {"input_values": torch.randn(n, c["seq"], device="cuda"), "labels": labels}
    if c["model"] == "whisper":
        labels = torch.randint(0, config.vocab_size, (n, c["seq"]), device="cuda")
        return {"input_features": torch.randn(n, 80, 3000, device="cuda"), "labels": labels}
    ids = torch.randint(3, config.vocab_size, (n, c["seq"]), device="cuda")
    labels = ids
    if "target" in c:
        labels = torch.randint(3, config.vocab_size, (n, c["target"]), device="cuda")
    if c["model"] in ("deberta", "modernbert-cls"):
        labels = torch.zeros(n, dtype=torch.long, device="cuda")
    if c["model"] == "roberta":
        labels = torch.zeros_like(ids)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


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
    """Sound comes in the type of the weights where there is no autocast."""
    if "input_values" in batch and c["kind"] == "bf16" and half is None:
        batch["input_values"] = batch["input_values"].to(torch.bfloat16)


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
    names = [c["name"] for c in cases() if c["name"] not in done]
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


def main(doc=__doc__):
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
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
    args = parser.parse_args()
    if args.part == "one":
        print("RESULT" + json.dumps(measure(next(c for c in cases() if c["name"] == args.name))))
        return
    {"ask": ask_all, "measure": measure_all, "compare": compare}[args.part](args)


if __name__ == "__main__":
    main()
