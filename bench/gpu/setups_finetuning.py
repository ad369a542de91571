"""59 more setups for setups.py, on 32 architectures: most of it is what people fine-tune with
(adapters under autocast and under sharding, quantised weights, optimizers in 8 bits), the rest is
plain training of other families. Commands are those of setups.py:

    python bench/gpu/setups_finetuning.py ask MEMROOM PYTHON bench/gpu/setups-said.jsonl
    PYTHONPATH=libs python bench/gpu/setups_finetuning.py measure $OUT/setups-h200.jsonl
    python bench/gpu/setups_finetuning.py compare bench/gpu/setups-said.jsonl MEASURED.jsonl

`one NAME` runs a single setup in this process and prints RESULT and its JSON. Nothing is
downloaded.

Weights are zeros, but for the mixture of experts, whose router would send all tokens to the same
experts. Under `fsdp` and `ddp` the weights are fp32 and what has `r` gets its adapters before it is
sharded. `padded` masks the ends of all samples of a batch but the first.
"""

import setups
from setups import sizes


def encoder_decoder(width, inner, layers, heads, vocab, **more):
    """The names that BART and its relatives share."""
    return {
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": inner,
        "vocab_size": vocab,
        **more,
    }


def gpt2(**more):
    return {"n_embd": 1024, "n_layer": 12, "n_head": 16, "vocab_size": 50257, **more}


# By name: the model_type, the configuration and the class in transformers, what a batch holds, and
# what is not default in the configuration.
MODELS = {
    "llama": (
        "llama",
        "LlamaConfig",
        "LlamaForCausalLM",
        "text",
        sizes(1536, 4096, 12, 12, 4, 64000, max_position_embeddings=8192, rope_theta=500000.0),
    ),
    "llama-tied": (
        "llama",
        "LlamaConfig",
        "LlamaForCausalLM",
        "text",
        sizes(960, 2560, 20, 15, 5, 49152, tie_word_embeddings=True, max_position_embeddings=4096),
    ),
    "mistral": (
        "mistral",
        "MistralConfig",
        "MistralForCausalLM",
        "text",
        sizes(2048, 7168, 8, 16, 4, 32768, head_dim=128, sliding_window=None),
    ),
    "qwen2": (
        "qwen2",
        "Qwen2Config",
        "Qwen2ForCausalLM",
        "text",
        sizes(896, 4864, 12, 14, 2, 151936, tie_word_embeddings=True),
    ),
    "qwen2-cls": (
        "qwen2",
        "Qwen2Config",
        "Qwen2ForSequenceClassification",
        "class",
        sizes(1280, 3584, 12, 10, 2, 151936, pad_token_id=0, num_labels=1),
    ),
    "mixtral": (
        "mixtral",
        "MixtralConfig",
        "MixtralForCausalLM",
        "text",
        sizes(768, 2048, 6, 12, 4, 32000, num_local_experts=8, num_experts_per_tok=2),
    ),
    "gemma3": (
        "gemma3_text",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        "text",
        sizes(1024, 6144, 12, 4, 1, 131072, head_dim=256, sliding_window=512),
    ),
    "smollm3": (
        "smollm3",
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        "text",
        sizes(1024, 4096, 12, 16, 4, 128256, pad_token_id=0, tie_word_embeddings=True),
    ),
    "falcon": (
        "falcon",
        "FalconConfig",
        "FalconForCausalLM",
        "text",
        sizes(2048, None, 8, 32, vocab=65024, multi_query=True, parallel_attn=True, bias=False),
    ),
    "gpt-neo": (
        "gpt_neo",
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        "text",
        {
            "hidden_size": 1024,
            "num_layers": 8,
            "num_heads": 16,
            "attention_types": [[["global", "local"], 4]],
            "window_size": 256,
            "vocab_size": 50257,
        },
    ),
    "opt": (
        "opt",
        "OPTConfig",
        "OPTForCausalLM",
        "text",
        sizes(
            1024,
            None,
            16,
            16,
            vocab=50272,
            ffn_dim=4096,
            word_embed_proj_dim=1024,
            max_position_embeddings=2048,
        ),
    ),
    "gpt2": ("gpt2", "GPT2Config", "GPT2LMHeadModel", "text", gpt2()),
    "codegen": (
        "codegen",
        "CodeGenConfig",
        "CodeGenForCausalLM",
        "text",
        gpt2(n_layer=10, rotary_dim=32, vocab_size=51200, tie_word_embeddings=False),
    ),
    "mamba": (
        "mamba",
        "MambaConfig",
        "MambaForCausalLM",
        "text",
        {"hidden_size": 768, "num_hidden_layers": 6, "state_size": 16, "vocab_size": 50280},
    ),
    "bert": ("bert", "BertConfig", "BertForMaskedLM", "text", sizes(1024, 4096, 12, 16)),
    "distilbert": (
        "distilbert",
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        "class",
        {"dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12, "vocab_size": 30522},
    ),
    "electra": (
        "electra",
        "ElectraConfig",
        "ElectraForQuestionAnswering",
        "span",
        sizes(768, 3072, 12, 12, vocab=30522, embedding_size=768),
    ),
    "xlm-roberta": (
        "xlm-roberta",
        "XLMRobertaConfig",
        "XLMRobertaForTokenClassification",
        "tags",
        sizes(768, 3072, 12, 12, vocab=250002, max_position_embeddings=514, num_labels=9),
    ),
    "albert": (
        "albert",
        "AlbertConfig",
        "AlbertForSequenceClassification",
        "class",
        sizes(1024, 4096, 12, 16, vocab=30000, embedding_size=128),
    ),
    "longformer": (
        "longformer",
        "LongformerConfig",
        "LongformerForSequenceClassification",
        "class",
        sizes(
            768,
            3072,
            6,
            12,
            vocab=50265,
            attention_window=[256] * 6,
            max_position_embeddings=4098,
            type_vocab_size=1,
            pad_token_id=1,
        ),
    ),
    "mt5": (
        "mt5",
        "MT5Config",
        "MT5ForConditionalGeneration",
        "text",
        {
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 1024,
            "num_layers": 8,
            "num_heads": 6,
            "vocab_size": 250112,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "decoder_start_token_id": 0,
        },
    ),
    "pegasus": (
        "pegasus",
        "PegasusConfig",
        "PegasusForConditionalGeneration",
        "text",
        encoder_decoder(1024, 4096, 6, 16, 96103, max_position_embeddings=1024),
    ),
    "marian": (
        "marian",
        "MarianConfig",
        "MarianMTModel",
        "text",
        encoder_decoder(
            512,
            2048,
            6,
            8,
            58101,
            max_position_embeddings=512,
            pad_token_id=58100,
            decoder_start_token_id=58100,
        ),
    ),
    "whisper": (
        "whisper",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        "speech",
        encoder_decoder(1024, 4096, 8, 16, 51865),
    ),
    "data2vec": (
        "data2vec-audio",
        "Data2VecAudioConfig",
        "Data2VecAudioForCTC",
        "sound",
        sizes(768, 3072, 10, 12, vocab=32),
    ),
    "wavlm": (
        "wavlm",
        "WavLMConfig",
        "WavLMForCTC",
        "sound",
        sizes(768, 3072, 8, 12, vocab=32),
    ),
    "vit": (
        "vit",
        "ViTConfig",
        "ViTForImageClassification",
        "image",
        sizes(768, 3072, 12, 12, image_size=224, patch_size=16, num_labels=100),
    ),
    "vit-384": (
        "vit",
        "ViTConfig",
        "ViTForImageClassification",
        "image",
        sizes(1024, 4096, 10, 16, image_size=384, patch_size=16, num_labels=10),
    ),
    "swin": (
        "swin",
        "SwinConfig",
        "SwinForImageClassification",
        "image",
        {
            "image_size": 224,
            "patch_size": 4,
            "embed_dim": 96,
            "depths": [2, 2, 6, 2],
            "num_heads": [3, 6, 12, 24],
            "window_size": 7,
        },
    ),
    "beit": (
        "beit",
        "BeitConfig",
        "BeitForImageClassification",
        "image",
        sizes(768, 3072, 12, 12, image_size=224, patch_size=16, use_relative_position_bias=True),
    ),
    "deit": (
        "deit",
        "DeiTConfig",
        "DeiTForImageClassification",
        "image",
        sizes(384, 1536, 12, 6, image_size=224, patch_size=16),
    ),
    "segformer": (
        "segformer",
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        "areas",
        {
            "depths": [3, 4, 6, 3],
            "hidden_sizes": [64, 128, 320, 512],
            "decoder_hidden_size": 256,
            "num_labels": 19,
        },
    ),
    "clip": (
        "clip",
        "CLIPConfig",
        "CLIPModel",
        "pairs",
        {
            "text_config": sizes(512, 2048, 12, 8, vocab=49408, projection_dim=512),
            "vision_config": sizes(
                768, 3072, 12, 12, image_size=224, patch_size=16, projection_dim=512
            ),
            "projection_dim": 512,
        },
    ),
    "resnet": (
        "resnet",
        "ResNetConfig",
        "ResNetForImageClassification",
        "image",
        {
            "depths": [3, 4, 6, 3],
            "hidden_sizes": [256, 512, 1024, 2048],
            "layer_type": "bottleneck",
            "num_labels": 1000,
        },
    ),
    "mobilenet": (
        "mobilenet_v2",
        "MobileNetV2Config",
        "MobileNetV2ForImageClassification",
        "image",
        {"image_size": 224, "depth_multiplier": 1.0, "num_labels": 1000},
    ),
}
QV = ["q_proj", "v_proj"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EVERY = "all-linear"
AMP = {"weights": "float32", "amp": True}  # adapters over fp32 weights, under autocast


def case(name, kind, model, batch, seq, **more):
    return dict(name="4-" + name, kind=kind, model=model, batch=batch, seq=seq, **more)


def cases():
    return decoders() + others() + packed() + sharded() + optimizers() + plain()


def decoders():
    """Adapters on causal language models, and on one that ranks."""
    return [
        case("lora-llama-amp", "lora", "llama", 4, 1024, targets=EVERY, r=16, **AMP),
        case(
            "lora-llama-amp-save",
            "lora",
            "llama",
            2,
            1500,
            targets=ATTENTION,
            r=64,
            save=["embed_tokens", "lm_head"],
            opt="adam8bit",
            **AMP,
        ),
        case(
            "lora-mistral-drop-ckpt",
            "lora",
            "mistral",
            4,
            2048,
            targets=EVERY,
            r=32,
            dropout=0.05,
            ckpt=True,
        ),
        case(
            "lora-qwen2-rank-amp",
            "lora",
            "qwen2-cls",
            12,
            333,
            targets=QV,
            r=8,
            dropout=0.1,
            save=["score"],
            task="SEQ_CLS",
            **AMP,
        ),
        case("dora-gemma3", "lora", "gemma3", 2, 700, targets=EVERY, r=16, dora=True),
        case(
            "lora-smollm3-autocast",
            "lora",
            "smollm3",
            3,
            1024,
            targets=EVERY,
            r=16,
            dropout=0.05,
            amp=True,
            autocast=True,
        ),
        case("lora-gpt2-amp", "lora", "gpt2", 8, 512, targets=["c_attn"], r=16, dropout=0.1, **AMP),
        case("lora-mixtral-ckpt", "lora", "mixtral", 4, 1024, targets=ATTENTION, r=8, ckpt=True),
        case(
            "lora-falcon-eval",
            "lora",
            "falcon",
            2,
            1024,
            targets=["query_key_value", "dense"],
            r=16,
            eval_batch=10,
            opt="fused",
        ),
        case(
            "lora-codegen-acc",
            "lora",
            "codegen",
            4,
            512,
            targets=["qkv_proj"],
            r=32,
            accumulate=4,
            clip=True,
        ),
    ]


def others():
    """Adapters on everything else."""
    named = ["query", "key", "value"]
    return [
        case(
            "lora-mt5-amp-drop",
            "lora",
            "mt5",
            8,
            333,
            target=77,
            targets=["q", "k", "v", "o"],
            r=16,
            dropout=0.1,
            **AMP,
        ),
        case(
            "lora-pegasus-ckpt",
            "lora",
            "pegasus",
            8,
            700,
            target=96,
            targets=[*QV, "k_proj", "out_proj"],
            r=32,
            ckpt=True,
        ),
        case(
            "lora-xlmr-tags",
            "lora",
            "xlm-roberta",
            24,
            200,
            targets=named,
            r=16,
            dropout=0.1,
            save=["classifier"],
            task="TOKEN_CLS",
            padded=True,
            **AMP,
        ),
        case(
            "lora-electra-span",
            "lora",
            "electra",
            32,
            384,
            targets=["query", "value"],
            r=8,
            save=["qa_outputs"],
            task="QUESTION_ANS",
        ),
        case(
            "lora-vit384-ckpt",
            "lora",
            "vit-384",
            48,
            0,
            image=384,
            targets=QV,
            r=16,
            save=["classifier"],
            ckpt=True,
            **AMP,
        ),
        case("lora-clip-amp", "lora", "clip", 64, 77, targets=QV, r=16, dropout=0.1, **AMP),
        case("lora-beit-bf16", "lora", "beit", 48, 0, targets=QV, r=8),
        case(
            "dora-data2vec-amp",
            "lora",
            "data2vec",
            6,
            160000,
            targets=QV,
            r=16,
            dora=True,
            save=["lm_head"],
            **AMP,
        ),
    ]


def packed():
    return [
        case(
            "qlora-llama-dq-paged",
            "qlora",
            "llama",
            4,
            1500,
            targets=EVERY,
            r=64,
            dq=True,
            ckpt=True,
            opt="paged8bit",
        ),
        case("qlora-mistral-qv", "qlora", "mistral", 3, 1024, targets=QV, r=16, dropout=0.05),
        case(
            "qdora-qwen2-dq", "qlora", "qwen2", 2, 700, targets=ATTENTION, r=16, dq=True, dora=True
        ),
        case(
            "qlora-opt-noupcast",
            "qlora",
            "opt",
            8,
            777,
            targets=EVERY,
            r=8,
            no_upcast=True,
            ckpt=True,
        ),
        case(
            "qlora-falcon-acc-clip",
            "qlora",
            "falcon",
            2,
            512,
            targets=EVERY,
            r=32,
            accumulate=4,
            clip=True,
            opt="paged32",
        ),
        case(
            "qlora-pegasus-dq",
            "qlora",
            "pegasus",
            8,
            512,
            target=128,
            targets=QV,
            r=16,
            dq=True,
            dropout=0.1,
        ),
        case("int8-smollm3-ckpt", "int8", "smollm3", 4, 1024, targets=EVERY, r=16, ckpt=True),
        case("int8-whisper", "int8", "whisper", 4, 200, targets=QV, r=32, dropout=0.05),
    ]


def sharded():
    return [
        case("fsdp2-llama-w64-ckpt", "fsdp2", "llama", 8, 1024, world=64, ckpt=True),
        case("fsdp2-mistral-w16-keep", "fsdp2", "mistral", 2, 1500, world=16, reshard=False),
        case("fsdp2-mt5-w4", "fsdp2", "mt5", 8, 512, target=128, world=4, clip=True),
        case("fsdp2-vit-w8-sgdm", "fsdp2", "vit", 96, 0, world=8, opt="sgdm"),
        case(
            "fsdp2-qwen2-w4-lora",
            "fsdp2",
            "qwen2",
            2,
            1024,
            world=4,
            targets=EVERY,
            r=16,
            opt="fused",
        ),
        case(
            "fsdp2-mistral-w8-lora-ckpt",
            "fsdp2",
            "mistral",
            4,
            2048,
            world=8,
            targets=ATTENTION,
            r=64,
            dropout=0.05,
            ckpt=True,
        ),
        case("fsdp1-llama-w8-ckpt", "fsdp1", "llama-tied", 8, 1024, world=8, ckpt=True),
        case("fsdp1-gpt2-w2-keep", "fsdp1", "gpt2", 4, 1024, world=2, reshard=False, opt="fused"),
        case("fsdp1-opt-w16-lora", "fsdp1", "opt", 4, 1024, world=16, targets=QV, r=16),
        case("ddp-bert-clip", "ddp", "bert", 16, 333, world=2, clip=True),
        case("ddp-gpt2-lora", "ddp", "gpt2", 4, 700, world=2, targets=["c_attn", "c_proj"], r=8),
    ]


def optimizers():
    return [
        case("lion8bit-opt", "bf16", "opt", 4, 1024, opt="lion8bit"),
        case("adam8bit-llama-keep", "amp", "llama-tied", 2, 1024, opt="adam8bit", keep_grads=True),
        case("paged32-gptneo", "amp", "gpt-neo", 4, 700, opt="paged32"),
        case("adafactor-pegasus-ckpt", "bf16", "pegasus", 8, 512, target=128, opt="adafactor")
        | {"ckpt": True},
        case("sgd-resnet-last", "amp", "resnet", 96, 0, opt="sgd", channels_last=True),
        case("fused-gpt2-acc-clip", "bf16", "gpt2", 4, 1000, opt="fused")
        | {"accumulate": 2, "clip": True},
        case("adagrad-albert", "fp32", "albert", 8, 333, opt="adagrad"),
    ]


def plain():
    return [
        case("qwen2-eager", "bf16", "qwen2", 2, 700, attn="eager"),
        case("gemma3-eval", "bf16", "gemma3", 2, 1024, eval_batch=6),
        case("mixtral", "bf16", "mixtral", 2, 1024),
        case("mamba-amp", "amp", "mamba", 2, 333),
        case("distilbert-fp16", "fp16", "distilbert", 64, 256, accumulate=2, clip=True),
        case("longformer-amp", "amp", "longformer", 3, 2048),
        case("marian-padded", "amp", "marian", 32, 150, target=130, padded=True),
        case("electra-eager-fp32", "fp32", "electra", 12, 320, attn="eager"),
        case("wavlm-amp", "amp", "wavlm", 6, 120000),
        case("swin-amp", "amp", "swin", 64, 0),
        case("deit-bf16-eval", "bf16", "deit", 64, 0, eval_batch=256),
        case("segformer-512", "amp", "segformer", 6, 0, image=512),
        case("clip-amp-fused", "amp", "clip", 48, 77, opt="fused"),
        case(
            "vit-last-blocks", "amp", "vit", 96, 0, train=["layers.10", "layers.11", "classifier"]
        ),
        case("mobilenet-fp32", "fp32", "mobilenet", 64, 0, opt="sgdm"),
    ]


def takes(c):
    return MODELS[c["model"]][3]


def written(c):
    """The model's config.json."""
    model_type, _, kind, _, values = MODELS[c["model"]]
    values = dict(values)
    labels = values.pop("num_labels", None)
    if labels:  # config.json has the labels' names, not their number
        values["id2label"] = {str(i): "LABEL_%d" % i for i in range(labels)}
        values["label2id"] = {"LABEL_%d" % i: i for i in range(labels)}
    return {"model_type": model_type, "architectures": [kind], **values}


# ---------------------------------------------------------------- what is other than in the driver

OPTIMIZERS = setups.OPTIMIZERS | {"lion8bit": "lion_8bit", "paged32": "paged_adamw_32bit"}
driver = {name: getattr(setups, name) for name in ("flags", "optimizer", "without_random_weights")}


def flags(c):
    """What a user would ask memroom for this setup."""
    out = driver["flags"](c)
    for key, flag in (("image", "--image"), ("attn", "--attn")):
        out += [flag, str(c[key])] if c.get(key) else []
    for key, flag in (("padded", "--padded"), ("no_upcast", "--no-upcast")):
        out += [flag] if c.get(key) else []
    out += ["--train-only", ",".join(c["train"])] if c.get("train") else []
    return out


def described(c):
    import copy

    import transformers

    _, config, kind, _, values = MODELS[c["model"]]
    config = getattr(transformers, config)(**copy.deepcopy(values))
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if c.get("attn"):
        config._attn_implementation = c["attn"]
    return getattr(transformers, kind), config


def without_random_weights(torch, kind):
    if "Mixtral" not in kind.__name__:
        driver["without_random_weights"](torch, kind)


def prepared(c, torch, model):
    """Adapters before sharding, or all frozen but a few layers."""
    if "train" in c:
        for name, p in model.named_parameters():
            p.requires_grad_(any(part in name for part in c["train"]))
    if "r" in c:
        from peft import get_peft_model

        model = get_peft_model(model, setups.adapter(c))
    return model


def optimizer(name, parameters, torch):
    if name in ("lion8bit", "paged32"):
        from bitsandbytes import optim

        kind = {"lion8bit": optim.Lion8bit, "paged32": optim.PagedAdamW32bit}[name]
        return kind(parameters, lr=1e-4)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3)
    if name == "adagrad":
        return torch.optim.Adagrad(parameters, lr=1e-3)
    return driver["optimizer"](name, parameters, torch)


def given(c, torch, n):
    """A batch of n on the card."""
    config, what = described(c)[1], takes(c)
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


def cast(c, torch, batch, half):
    """Pictures and sound come in the type of the weights where there is no autocast."""
    if half is None and c["kind"] in ("bf16", "lora") and "weights" not in c:
        for key in ("pixel_values", "input_values", "input_features"):
            if key in batch:
                batch[key] = batch[key].to(torch.bfloat16)


setups.use(
    __file__,
    MODELS=MODELS,
    OPTIMIZERS=OPTIMIZERS,
    cases=cases,
    written=written,
    flags=flags,
    described=described,
    without_random_weights=without_random_weights,
    prepared=prepared,
    optimizer=optimizer,
    given=given,
    cast=cast,
)

if __name__ == "__main__":
    setups.main(__doc__)
