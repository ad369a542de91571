"""Cases of recipes.py on other architectures and with other settings."""


def tied(hidden, inner, layers, heads, kv, vocab, **more):
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
        **more,
    }


# By name: the classes in transformers, the model_type, and what differs from the defaults.
MODELS = {
    "smol": ("LlamaConfig", "LlamaForCausalLM", "llama", tied(576, 1536, 30, 9, 3, 49152)),
    "llama1b": ("LlamaConfig", "LlamaForCausalLM", "llama", tied(2048, 8192, 16, 32, 8, 128256)),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        "qwen3",
        tied(1024, 3072, 28, 16, 8, 151936, head_dim=128),
    ),
    "qwen05": ("Qwen2Config", "Qwen2ForCausalLM", "qwen2", tied(896, 4864, 24, 14, 2, 151936)),
    "mistral": (
        "MistralConfig",
        "MistralForCausalLM",
        "mistral",
        tied(2048, 7168, 12, 16, 4, 32768, tie_word_embeddings=False, sliding_window=None),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        "gemma3_text",
        tied(1152, 6912, 12, 4, 1, 65536, head_dim=256),
    ),
    "gpt2m": (
        "GPT2Config",
        "GPT2LMHeadModel",
        "gpt2",
        {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    ),
    "bertl": (
        "BertConfig",
        "BertForSequenceClassification",
        "bert",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", "vit", {}),
    "neox": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        "gpt_neox",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "vocab_size": 50304,
        },
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        "opt",
        {
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 1024,
            "vocab_size": 50272,
        },
    ),
}


def case(name, kind, model, batch, seq, **more):
    given = dict(name="2-" + name, kind=kind, model=model, batch=batch, seq=seq, mask=True)
    return given | {"host": True} | more


def cases():
    """The list; host means that weights are cast before they go to the card."""
    return adapters() + packed() + optimizers() + sharded() + plain() + compiled()


def adapters():
    every, qv = "all-linear", ["q_proj", "v_proj"]
    return [
        case("lora-all-qwen3", "lora", "qwen3", 4, 1024, targets=every, r=8),
        case("lora-qv-mistral", "lora", "mistral", 4, 2048, targets=qv, r=64),
        case("lora-all-gemma3-ckpt", "lora", "gemma3", 8, 1024, targets=every, r=16, ckpt=True),
        case("lora-gpt2m", "lora", "gpt2m", 4, 512, targets=["c_attn"], r=16, weights="float32"),
        case(
            "lora-bert-amp",
            "lora",
            "bertl",
            32,
            256,
            targets=["query", "value"],
            r=8,
            weights="float32",
            amp=True,
            task="SEQ_CLS",
        ),
        case("lora-drop-smol", "lora", "smol", 8, 1024, targets=every, r=32, dropout=0.1),
        case(
            "lora-save-mistral",
            "lora",
            "mistral",
            2,
            1024,
            targets=every,
            r=16,
            save=["embed_tokens", "lm_head"],
        ),
        case("dora-all-qwen05", "lora", "qwen05", 2, 1024, targets=every, r=16, dora=True),
        case("dora-qv-smol", "lora", "smol", 8, 512, targets=qv, r=16, dora=True, dropout=0.05),
        case("lora-amp-llama1b", "lora", "llama1b", 2, 1024, targets=every, r=16, autocast=True),
        case("lora-acc-llama1b", "lora", "llama1b", 1, 2048, targets=qv, r=16, accumulate=4),
    ]


def packed():
    every, qv = "all-linear", ["q_proj", "v_proj"]
    return [
        case("qlora-llama1b", "qlora", "llama1b", 2, 1024, targets=every, r=16, dq=True, ckpt=True),
        case("qlora-qwen05-fp4", "qlora", "qwen05", 2, 1024, targets=every, r=16, quant="fp4"),
        case("qlora-mistral-raw", "qlora", "mistral", 2, 2048, targets=every, r=8, prepare=False),
        case("qlora-qwen3-qv", "qlora", "qwen3", 4, 1024, targets=qv, r=32, dq=True),
        case("qlora-smol-drop", "qlora", "smol", 8, 512, targets=every, r=16, dropout=0.05),
        case("qlora-gemma3", "qlora", "gemma3", 2, 1024, targets=every, r=16, dq=True),
        case(
            "qlora-mistral-paged",
            "qlora",
            "mistral",
            4,
            1024,
            targets=every,
            r=64,
            ckpt=True,
            opt="paged8bit",
        ),
        case("int8-qwen05", "int8", "qwen05", 2, 512, targets=every, r=16),
        case("int8-mistral-ckpt", "int8", "mistral", 4, 1024, targets=qv, r=16, ckpt=True),
        case("int8-opt", "int8", "opt", 4, 1024, targets=qv, r=16),
    ]


def optimizers():
    return [
        case("adam8bit-qwen05", "bf16", "qwen05", 2, 1024, opt="adam8bit"),
        case("paged8bit-gpt2m", "amp", "gpt2m", 4, 512, opt="paged8bit"),
        case("lion8bit-smol", "bf16", "smol", 8, 1024, opt="lion8bit"),
        case("lion-smol", "amp", "smol", 4, 1024, opt="lion"),
        case("adafactor-mistral", "bf16", "mistral", 2, 1024, opt="adafactor"),
        case("muon-smol", "amp", "smol", 4, 1024, opt="muon"),
        case("muon-mistral", "bf16", "mistral", 2, 512, opt="muon"),
        case("galore-smol", "bf16", "smol", 4, 512, opt="galore"),
        case("fused-qwen3", "amp", "qwen3", 2, 1024, opt="adamw_fused"),
        case("ao8bit-opt", "bf16", "opt", 4, 512, opt="ao8bit"),
    ]


def sharded():
    qv = ["q_proj", "v_proj"]
    return [
        case("fsdp2-qwen3-w2", "fsdp2", "qwen3", 2, 1024, world=2),
        case("fsdp2-mistral-w4-ckpt", "fsdp2", "mistral", 8, 2048, world=4, ckpt=True),
        case("fsdp2-gemma3-w8", "fsdp2", "gemma3", 4, 1024, world=8),
        case("fsdp2-vit-w4", "fsdp2", "vit", 64, 0, world=4),
        case("fsdp2-llama1b-w16-keep", "fsdp2", "llama1b", 2, 1024, world=16, reshard=False),
        case("fsdp2-neox-w8", "fsdp2", "neox", 4, 1024, world=8),
        case("fsdp2-opt-w2-acc", "fsdp2", "opt", 4, 512, world=2, accumulate=2),
        case("fsdp2-bert-w16-bf16", "fsdp2", "bertl", 32, 256, world=16, stored="bfloat16"),
        case("fsdp2-lora-mistral-w4", "fsdp2", "mistral", 4, 1024, world=4, targets=qv, r=16),
        case("fsdp1-qwen3-w4", "fsdp1", "qwen3", 2, 1024, world=4),
        case("fsdp1-bert-w16", "fsdp1", "bertl", 32, 256, world=16),
        case("fsdp1-llama1b-w8-ckpt", "fsdp1", "llama1b", 4, 2048, world=8, ckpt=True),
        case("fsdp1-opt-w2-grad", "fsdp1", "opt", 4, 1024, world=2, strategy="SHARD_GRAD_OP"),
        case("ddp-qwen3-view", "ddp", "qwen3", 2, 512, world=2, view=True),
        case("ddp-bert", "ddp", "bertl", 16, 256, world=2),
        case("ddp-vit", "ddp", "vit", 32, 0, world=2),
    ]


def plain():
    return [
        case("ckpt-gemma3", "amp", "gemma3", 8, 1024, ckpt=True),
        case("autocast-qwen05", "bf16", "qwen05", 2, 1024, autocast=True),
        case("ckpt-neox", "bf16", "neox", 8, 2048, ckpt=True),
        case("amp-vit", "amp", "vit", 128, 0),
    ]


def compiled():
    return [
        case("compile-smol", "bf16", "smol", 8, 1024, compile=True, mask=False),
        case("compile-qwen3", "bf16", "qwen3", 2, 1024, compile=True, mask=False),
        case("compile-mistral", "amp", "mistral", 2, 1024, compile=True, mask=False),
        case("compile-mistral-mask", "bf16", "mistral", 2, 1024, compile=True),
        case("compile-gpt2m", "bf16", "gpt2m", 4, 1024, compile=True, mask=False),
        case("compile-bert", "amp", "bertl", 32, 256, compile=True),
        case("compile-vit", "amp", "vit", 128, 0, compile=True),
        case("compile-llama1b-ckpt", "bf16", "llama1b", 4, 1024, compile=True, ckpt=True),
        case("compile-opt", "amp", "opt", 8, 512, compile=True, mask=False),
        case("compile-neox-fp32", "fp32", "neox", 2, 512, compile=True, mask=False),
        case("compile-gemma3", "bf16", "gemma3", 2, 1024, compile=True, mask=False),
        case("compile-adam8bit", "bf16", "smol", 4, 512, compile=True, mask=False, opt="adam8bit"),
    ]
