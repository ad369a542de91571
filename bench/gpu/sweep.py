"""Random training setups, said by memroom against rehearsed by it: the planner's Go descriptions
are held against PyTorch's own operations on fake tensors, without a card.

Each number of --from/--to is the seed of one setup: a model type that memroom describes without
Python, sizes, precision, adapters, optimizer, batch and so on. A rehearsal was equal to the H200
to the byte for every script that was tried on both, so it serves as the truth here.

    python bench/gpu/sweep.py run MEMROOM PYTHON OUT.jsonl --from 0 --to 300 [--only KIND,...]
    python bench/gpu/sweep.py again MEMROOM OUT.jsonl       # asks memroom again, rehearses nothing
    python bench/gpu/sweep.py show OUT.jsonl                # worst first, and by kind

PYTHON has torch, transformers and peft (`testenv/ensure trl` prints one). A seed that is in the
file is not rehearsed again. One Python imports the libraries and forks a process for each setup:
about three seconds each instead of fifteen.
"""

import argparse
import concurrent.futures
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

import setups

SECONDS = 120  # of processor time that one rehearsal may take
STEPS = 4

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BERT = ["query", "key", "value", "dense"]
VIT = ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"]
BART = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]


def family(prefix, head, shape, targets, **more):
    return dict(prefix=prefix, head=head, shape=shape, targets=targets, more=more)


def llama(draw):
    """Sizes of a decoder in Llama's manner."""
    dim = draw.choice([32, 64, 64, 80, 128])
    heads = draw.choice([4, 8, 12])
    kv = draw.choice([k for k in (1, 2, 4, 8, 12) if heads % k == 0])
    hidden = dim * heads
    return setups.sizes(
        hidden,
        draw.choice([2 * hidden, 4 * hidden, hidden * 8 // 3 // 32 * 32, 1000]),
        draw.choice([2, 2, 2, 3]),
        heads,
        kv,
        draw.choice([1000, 5003, 32000, 50257, 50304]),
        tie_word_embeddings=draw.random() < 0.4,
        pad_token_id=0,
        max_position_embeddings=4096,
    )


def alike(draw):
    """The same without fewer key heads."""
    given = llama(draw)
    given["num_key_value_heads"] = given["num_attention_heads"]
    return given


def untied(draw):
    given = llama(draw)
    del given["num_key_value_heads"]
    return given


def headed(draw):
    """With heads whose size is not hidden / heads."""
    return dict(llama(draw), head_dim=draw.choice([32, 64, 128]))


def gemma(draw):
    return dict(headed(draw), sliding_window=draw.choice([64, 512, 4096]), tie_word_embeddings=True)


def gpt(draw):
    heads, dim = draw.choice([(4, 64), (8, 64), (12, 64), (8, 32)])
    return {
        "n_embd": heads * dim,
        "n_layer": draw.choice([2, 2, 3]),
        "n_head": heads,
        "n_positions": 2048,
        "pad_token_id": 0,
        "vocab_size": draw.choice([5003, 50257, 50304]),
    }


def gptj(draw):
    return dict(gpt(draw), rotary_dim=32)


def gpt_neo(draw):
    return {
        "hidden_size": draw.choice([256, 512, 768]),
        "num_layers": 4,
        "num_heads": 8,
        "attention_types": [[["global", "local"], 2]],
        "window_size": draw.choice([64, 256]),
        "max_position_embeddings": 2048,
        "vocab_size": draw.choice([5003, 50257]),
    }


def bloom(draw):
    return {
        "hidden_size": draw.choice([256, 512, 1024]),
        "n_layer": draw.choice([2, 2, 3]),
        "n_head": draw.choice([4, 8, 16]),
        "vocab_size": draw.choice([5008, 65024]),
    }


def falcon(draw):
    heads = draw.choice([4, 8])
    return {
        "hidden_size": heads * 64,
        "num_hidden_layers": draw.choice([2, 2, 3]),
        "num_attention_heads": heads,
        "vocab_size": draw.choice([5008, 65024]),
        **draw.choice(
            [
                {"multi_query": True, "new_decoder_architecture": False, "parallel_attn": True},
                {"new_decoder_architecture": True, "num_kv_heads": 2},
                {"new_decoder_architecture": True, "num_kv_heads": 4},
            ]
        ),
    }


def mpt(draw):
    return {
        "d_model": draw.choice([256, 512, 1024]),
        "n_heads": draw.choice([4, 8]),
        "n_layers": draw.choice([2, 2, 3]),
        "max_seq_len": 2048,
        "vocab_size": draw.choice([5008, 50368]),
    }


def opt(draw):
    hidden = draw.choice([256, 512, 768])
    return {
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": draw.choice([2, 2, 3]),
        "num_attention_heads": draw.choice([4, 8]),
        "word_embed_proj_dim": draw.choice([hidden, hidden, 128]),
        "vocab_size": draw.choice([5003, 50272]),
    }


def experts(draw):
    return dict(
        llama(draw),
        num_local_experts=draw.choice([4, 8]),
        num_experts_per_tok=2,
        intermediate_size=draw.choice([256, 1024]),
    )


def sparse(draw):
    return dict(
        llama(draw),
        num_experts=draw.choice([4, 8, 16]),
        num_experts_per_tok=draw.choice([2, 4]),
        moe_intermediate_size=draw.choice([128, 256]),
        head_dim=64,
    )


def encoder(draw):
    heads, dim = draw.choice([(4, 64), (8, 64), (12, 64), (8, 32)])
    hidden = heads * dim
    return setups.sizes(
        hidden,
        draw.choice([2 * hidden, 4 * hidden]),
        draw.choice([2, 2, 2, 3]),
        heads,
        vocab=draw.choice([5003, 30522, 50265]),
        max_position_embeddings=1026,
    )


def distil(draw):
    e = encoder(draw)
    return {
        "dim": e["hidden_size"],
        "hidden_dim": e["intermediate_size"],
        "n_layers": e["num_hidden_layers"],
        "n_heads": e["num_attention_heads"],
        "vocab_size": e["vocab_size"],
        "max_position_embeddings": 1026,
    }


def albert(draw):
    return dict(encoder(draw), embedding_size=128)


def electra(draw):
    e = encoder(draw)
    return dict(e, embedding_size=draw.choice([128, e["hidden_size"]]))


def deberta(draw):
    values = dict(setups.MODELS["deberta"][3])
    e = encoder(draw)
    return {**values, **e, "max_position_embeddings": 512}


def modern(draw):
    e = encoder(draw)
    e["local_attention"] = draw.choice([64, 128])
    e["max_position_embeddings"] = 2048
    e["pad_token_id"] = 0
    return e


def t5(draw):
    heads = draw.choice([4, 8, 12])
    return setups.t5(
        d_model=draw.choice([256, 512, 768]),
        d_ff=draw.choice([1024, 2048]),
        num_layers=2,
        num_heads=heads,
        feed_forward_proj=draw.choice(["relu", "gated-gelu"]),
        tie_word_embeddings=draw.random() < 0.5,
    )


def bart(draw):
    hidden = draw.choice([256, 512, 768])
    return {
        "d_model": hidden,
        "encoder_layers": 2,
        "decoder_layers": draw.choice([2, 3]),
        "encoder_ffn_dim": 4 * hidden,
        "decoder_ffn_dim": draw.choice([2, 4]) * hidden,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "vocab_size": draw.choice([5003, 50265]),
        "max_position_embeddings": 1024,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
    }


def whisper(draw):
    values = bart(draw)
    del values["max_position_embeddings"]
    return dict(values, vocab_size=51865, decoder_start_token_id=50257, pad_token_id=50257)


def speech(draw):
    sizes = setups.sizes(draw.choice([256, 512, 768]), 2048, 2, 8, vocab=32)
    return dict(sizes, layerdrop=draw.choice([0.0, 0.0, 0.1]))


def images(draw):
    heads, dim = draw.choice([(4, 64), (8, 64), (12, 64), (8, 32)])
    patch = draw.choice([14, 16, 32])
    return setups.sizes(
        heads * dim,
        4 * heads * dim,
        draw.choice([2, 2, 2, 3]),
        heads,
        image_size=224,
        patch_size=patch,
    )


def dino(draw):
    values = images(draw)
    del values["intermediate_size"]
    return values


def dinov3(draw):
    return dict(images(draw), patch_size=16)


def swin(draw):
    return {
        "embed_dim": draw.choice([32, 96, 128]),
        "depths": draw.choice([[1, 1, 2, 1], [2, 2, 2, 2]]),
        "num_heads": draw.choice([[2, 4, 8, 16], [4, 8, 16, 32]]),
        "image_size": 224,
        "window_size": 7,
    }


def swinv2(draw):
    return dict(swin(draw), image_size=256, window_size=8)


def convnext(draw):
    return {
        "depths": draw.choice([[1, 1, 3, 1], [1, 2, 1, 1]]),
        "hidden_sizes": draw.choice([[96, 192, 384, 768], [40, 80, 160, 320]]),
        "image_size": 224,
    }


def resnet(draw):
    return {
        "depths": draw.choice([[1, 2, 2, 1], [2, 1, 1, 1]]),
        "layer_type": draw.choice(["bottleneck", "basic"]),
        "hidden_sizes": draw.choice([[64, 128, 256, 512], [256, 512, 1024, 2048]]),
    }


def clip(draw):
    text = setups.sizes(256, 1024, 2, 4, vocab=draw.choice([5003, 49408]))
    return {
        "text_config": dict(text, max_position_embeddings=77),
        "vision_config": images(draw),
        "projection_dim": draw.choice([256, 512]),
    }


def siglip(draw):
    text = setups.sizes(256, 1024, 2, 4, vocab=draw.choice([5003, 32000]))
    vision = images(draw)
    text["hidden_size"] = vision["hidden_size"]
    text["projection_size"] = vision["hidden_size"]
    return {"text_config": dict(text, max_position_embeddings=64), "vision_config": vision}


def spectrogram(draw):
    values = images(draw)
    del values["image_size"]
    return dict(values, patch_size=16, num_mel_bins=128, max_length=draw.choice([512, 1024]))


CAUSAL, MLM, SEQ2SEQ = "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"
CLASSES, TOKENS = "ForSequenceClassification", "ForTokenClassification"
ENCODERS = [MLM, CLASSES, TOKENS]
PICTURE = "ForImageClassification"
FAMILIES = {
    "llama": family("Llama", [CAUSAL, CAUSAL, CLASSES], llama, LLAMA),
    "mistral": family("Mistral", [CAUSAL], headed, LLAMA),
    "qwen2": family("Qwen2", [CAUSAL, CAUSAL, CLASSES], llama, LLAMA),
    "qwen3": family("Qwen3", [CAUSAL], headed, LLAMA),
    "gemma": family("Gemma", [CAUSAL], headed, LLAMA),
    "gemma2": family("Gemma2", [CAUSAL], gemma, LLAMA),
    "gemma3_text": family("Gemma3", [CAUSAL], gemma, LLAMA, config="Gemma3TextConfig"),
    "olmo": family("Olmo", [CAUSAL], llama, LLAMA),
    "olmo2": family("Olmo2", [CAUSAL], llama, LLAMA),
    "olmo3": family("Olmo3", [CAUSAL], llama, LLAMA),
    "granite": family("Granite", [CAUSAL], llama, LLAMA),
    "cohere": family("Cohere", [CAUSAL], llama, LLAMA),
    "cohere2": family("Cohere2", [CAUSAL], llama, LLAMA),
    "smollm3": family("SmolLM3", [CAUSAL], llama, LLAMA),
    "starcoder2": family("Starcoder2", [CAUSAL], llama, ["q_proj", "v_proj", "c_fc", "c_proj"]),
    "stablelm": family("StableLm", [CAUSAL], llama, LLAMA),
    "phi": family("Phi", [CAUSAL], alike, ["q_proj", "v_proj", "dense", "fc1", "fc2"]),
    "phi3": family("Phi3", [CAUSAL], llama, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "glm": family("Glm", [CAUSAL], headed, ["q_proj", "v_proj", "gate_up_proj", "down_proj"]),
    "glm4": family("Glm4", [CAUSAL], headed, ["q_proj", "v_proj", "gate_up_proj", "down_proj"]),
    "nemotron": family("Nemotron", [CAUSAL], headed, ["q_proj", "v_proj", "up_proj"]),
    "exaone4": family("Exaone4", [CAUSAL], llama, LLAMA),
    "seed_oss": family("SeedOss", [CAUSAL], headed, LLAMA),
    "helium": family("Helium", [CAUSAL], headed, LLAMA),
    "arcee": family("Arcee", [CAUSAL], llama, ["q_proj", "v_proj", "up_proj", "down_proj"]),
    "ernie4_5": family("Ernie4_5", [CAUSAL], headed, LLAMA),
    "hunyuan_v1_dense": family("HunYuanDenseV1", [CAUSAL], headed, LLAMA),
    "mixtral": family("Mixtral", [CAUSAL], experts, ["q_proj", "k_proj", "v_proj", "o_proj"]),
    "qwen2_moe": family("Qwen2Moe", [CAUSAL], sparse, ["q_proj", "k_proj", "v_proj", "o_proj"]),
    "qwen3_moe": family("Qwen3Moe", [CAUSAL], sparse, ["q_proj", "k_proj", "v_proj", "o_proj"]),
    "olmoe": family("Olmoe", [CAUSAL], sparse, ["q_proj", "k_proj", "v_proj", "o_proj"]),
    "gpt2": family(
        "GPT2", ["LMHeadModel", "LMHeadModel", CLASSES], gpt, ["c_attn", "c_proj", "c_fc"]
    ),
    "gpt_bigcode": family("GPTBigCode", [CAUSAL], gpt, ["c_attn", "c_proj", "c_fc"]),
    "gptj": family("GPTJ", [CAUSAL], gptj, ["q_proj", "k_proj", "v_proj", "fc_in", "fc_out"]),
    "codegen": family("CodeGen", [CAUSAL], gptj, ["qkv_proj", "out_proj", "fc_in"]),
    "gpt_neo": family("GPTNeo", [CAUSAL], gpt_neo, ["q_proj", "v_proj", "out_proj", "c_fc"]),
    "gpt_neox": family(
        "GPTNeoX", [CAUSAL], untied, ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
    ),
    "opt": family("OPT", [CAUSAL], opt, BART),
    "bloom": family(
        "Bloom", [CAUSAL], bloom, ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
    ),
    "falcon": family("Falcon", [CAUSAL], falcon, ["query_key_value", "dense", "dense_h_to_4h"]),
    "mpt": family("Mpt", [CAUSAL], mpt, ["Wqkv", "out_proj", "up_proj", "down_proj"]),
    "bert": family("Bert", ENCODERS, encoder, BERT),
    "roberta": family("Roberta", ENCODERS, encoder, BERT),
    "xlm-roberta": family("XLMRoberta", ENCODERS, encoder, BERT),
    "camembert": family("Camembert", ENCODERS, encoder, BERT),
    "electra": family("Electra", [CLASSES, TOKENS], electra, BERT),
    "distilbert": family("DistilBert", ENCODERS, distil, ["q_lin", "v_lin", "lin1", "lin2"]),
    "albert": family("Albert", [MLM, CLASSES], albert, ["query", "value", "ffn"]),
    "deberta-v2": family("DebertaV2", [CLASSES, TOKENS], deberta, ["query_proj", "value_proj"]),
    "modernbert": family("ModernBert", ENCODERS, modern, ["Wqkv", "Wo", "Wi"]),
    "esm": family("Esm", [MLM, CLASSES], encoder, BERT, pad=1),
    "mpnet": family("MPNet", [MLM, CLASSES], encoder, ["q", "k", "v", "o"]),
    "t5": family("T5", [SEQ2SEQ], t5, ["q", "k", "v", "o", "wo"]),
    "mt5": family("MT5", [SEQ2SEQ], t5, ["q", "v"]),
    "umt5": family("UMT5", [SEQ2SEQ], t5, ["q", "v"]),
    "bart": family("Bart", [SEQ2SEQ], bart, BART),
    "mbart": family("MBart", [SEQ2SEQ], bart, BART),
    "pegasus": family("Pegasus", [SEQ2SEQ], bart, BART),
    "marian": family("Marian", ["MTModel"], bart, BART),
    "m2m_100": family("M2M100", [SEQ2SEQ], bart, BART),
    "blenderbot": family("Blenderbot", [SEQ2SEQ], bart, BART),
    "whisper": family("Whisper", [SEQ2SEQ], whisper, BART),
    "wav2vec2": family("Wav2Vec2", ["ForCTC"], speech, ["q_proj", "v_proj"]),
    "hubert": family("Hubert", ["ForCTC"], speech, ["q_proj", "v_proj"]),
    "audio-spectrogram-transformer": family("AST", ["ForAudioClassification"], spectrogram, VIT),
    "vit": family("ViT", [PICTURE], images, VIT),
    "deit": family("DeiT", [PICTURE], images, VIT),
    "dinov2": family("Dinov2", [PICTURE], dino, ["query", "value"]),
    "dinov2_with_registers": family("Dinov2WithRegisters", [PICTURE], dino, ["query", "value"]),
    "swin": family("Swin", [PICTURE], swin, VIT),
    "swinv2": family("Swinv2", [PICTURE], swinv2, ["query", "value"]),
    "clip": family("CLIP", ["Model"], clip, ["q_proj", "v_proj"]),
    "siglip": family("Siglip", ["Model", PICTURE], siglip, ["q_proj", "v_proj"]),
    "convnext": family("ConvNext", [PICTURE], convnext, None),
    "convnextv2": family("ConvNextV2", [PICTURE], convnext, None),
    "resnet": family("ResNet", [PICTURE], resnet, None),
}
# The most used come more often.
COMMON = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gpt2", "opt", "falcon"]
COMMON += ["mixtral", "bert", "roberta", "distilbert", "t5", "bart", "vit", "whisper", "clip"]
COMMON += ["swin", "gemma3_text", "phi3", "gpt_neox", "modernbert", "deberta-v2", "wav2vec2"]

DECODERS = list(FAMILIES)[: list(FAMILIES).index("bert")]
SOUND = ("wav2vec2", "hubert")
IMAGES = list(FAMILIES)[list(FAMILIES).index("vit") :]
READERS = ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot")
SLOW = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe")


def setup(seed):
    """The setup of a seed, as setups.py writes them down."""
    draw = random.Random(seed)
    name = draw.choice(COMMON if draw.random() < 0.6 else list(FAMILIES))
    f = FAMILIES[name]
    c = {
        "name": "s%d" % seed,
        "model": "s%d" % seed,
        "family": name,
        "head": draw.choice(f["head"]),
    }
    c["values"] = f["shape"](draw)
    c["kind"] = draw.choice(
        ["bf16", "bf16", "amp", "amp", "fp16", "fp32", "lora", "lora", "lora", "lora"]
        + ["ddp", "fsdp1", "fsdp2", "fsdp2"]
    )
    if f["targets"] is None and c["kind"] == "lora":
        c["kind"] = "amp"
    sizes_of(draw, c, name)
    if c["kind"] == "lora":
        adapters_of(draw, c, f)
    elif c["kind"] == "bf16" and draw.random() < 0.3:
        c["autocast"] = True
    if name not in IMAGES[6:] and draw.random() < 0.3:
        c["ckpt"] = c["kind"] != "fsdp1"
    ways_of(draw, c)
    return {k: v for k, v in c.items() if v is not None}


def sizes_of(draw, c, name):
    c["batch"] = draw.choice([1, 2, 3, 4, 5, 7, 8, 12, 16])
    c["seq"] = draw.choice([64, 128, 200, 255, 256, 333, 384, 512, 777, 1000])
    if name == "deberta-v2":
        c["seq"] = min(c["seq"], 512)
    if name in READERS:
        c["target"] = draw.choice([32, 64, 100, 128, 333, 512])
    if name == "whisper":
        c["seq"] = draw.choice([32, 100, 256, 448])
    if name in SOUND:
        c["seq"] = draw.choice([16000, 50000, 80000, 160000])
    if name in IMAGES or name == "audio-spectrogram-transformer":
        c["batch"], c["seq"] = draw.choice([4, 7, 16, 32, 64]), 0
    if name == "clip":
        c["seq"] = draw.choice([0, 32, 77])
    if name == "siglip" and c["head"] == "Model":
        c["seq"] = draw.choice([0, 64])


def adapters_of(draw, c, f):
    some = draw.sample(f["targets"], draw.randint(1, len(f["targets"])))
    c["targets"] = draw.choice(["all-linear", f["targets"][:2], some])
    c["r"] = draw.choice([4, 8, 16, 64])
    c["dropout"] = draw.choice([None, None, 0.05, 0.1])
    c["dora"] = True if draw.random() < 0.12 else None
    way = draw.choice(["bf16", "bf16", "amp", "autocast", "fp32"])
    if way == "amp":
        c["weights"], c["amp"] = "float32", True
    if way == "fp32":
        c["weights"] = "float32"
    if way == "autocast":
        c["amp"] = True
    if c["head"] in (CLASSES, TOKENS) and f["prefix"] not in ("GPT2", "Llama", "Qwen2"):
        c["save"] = ["classifier"]
    if c["head"] == CAUSAL and draw.random() < 0.12:
        c["save"] = draw.choice([["lm_head"], ["embed_tokens", "lm_head"]])


def ways_of(draw, c):
    """Optimizer and loop."""
    kinds = ["adamw"] * 4 + ["fused", "loop", "sgd", "sgdm", "rmsprop", "adafactor"]
    c["opt"] = draw.choice(kinds)
    if c["kind"] in ("fsdp1", "fsdp2") and c["family"] in ("clip", "siglip"):
        c["kind"] = "ddp"  # a scalar parameter cannot be cut
    if c["kind"] in ("fsdp1", "fsdp2") and c["opt"] == "adafactor":
        c["opt"] = "adamw"
    if draw.random() < 0.25:
        c["accumulate"] = draw.choice([2, 3])
    if draw.random() < 0.3:
        c["clip"] = True
    if draw.random() < 0.12:
        c["keep_grads"] = True
    if draw.random() < 0.12 and c["kind"] not in ("fsdp1", "fsdp2", "ddp"):
        c["eval_batch"] = draw.choice([c["batch"], 2 * c["batch"], 3 * c["batch"]])
    if c["kind"] == "ddp":
        c["world"] = draw.choice([2, 8])
    if c["kind"] in ("fsdp1", "fsdp2"):
        c["world"] = draw.choice([2, 3, 4, 8, 32])
        c["reshard"] = False if draw.random() < 0.25 else None


def written(c):
    f = FAMILIES[c["family"]]
    return {
        "model_type": c["family"],
        "architectures": [f["prefix"] + c["head"]],
        **c["values"],
    }


# ---------------------------------------------------------------- the rehearsed program


def described(c):
    import transformers

    f = FAMILIES[c["family"]]
    config = getattr(transformers, f["more"].get("config", f["prefix"] + "Config"))(**c["values"])
    if hasattr(config, "use_cache"):
        config.use_cache = False
    kind = f["prefix"] + c["head"]
    if hasattr(transformers, kind):
        return getattr(transformers, kind), config
    raise ValueError("no class " + kind)


def blocks(model, torch):
    """What a wrapping policy of transformers names, as accelerate takes it."""
    names = set(model._no_split_modules or [])
    found = [m for m in model.modules() if type(m).__name__ in names]
    found = [m for m in found if "Embeddings" not in type(m).__name__]
    return found or listed_blocks(model, torch)


listed_blocks = setups.blocks


def given(c, torch, n, config):
    """A batch of n on the card."""
    name, head = c["family"], c["head"]
    label = torch.zeros(n, dtype=torch.long, device="cuda")
    out = {}
    if name in IMAGES:
        side = getattr(config, "image_size", None) or (
            config.vision_config.image_size if hasattr(config, "vision_config") else 224
        )
        out["pixel_values"] = torch.randn(n, 3, side, side).to("cuda")
        if head != "Model":
            return out | {"labels": label}
        length = c["seq"] or config.text_config.max_position_embeddings
        ids = torch.randint(3, config.text_config.vocab_size, (n, length), device="cuda")
        return out | {"input_ids": ids, "attention_mask": torch.ones_like(ids), "return_loss": True}
    if name == "audio-spectrogram-transformer":
        sound = torch.randn(n, config.max_length, config.num_mel_bins).to("cuda")
        return {"input_values": sound, "labels": label}
    if name in SOUND:
        labels = torch.randint(1, config.vocab_size, (n, 40), device="cuda")
        return {"input_values": torch.randn(n, c["seq"], device="cuda"), "labels": labels}
    if name == "whisper":
        labels = torch.randint(0, config.vocab_size, (n, c["seq"]), device="cuda")
        return {"input_features": torch.randn(n, 80, 3000, device="cuda"), "labels": labels}
    ids = torch.randint(3, config.vocab_size, (n, c["seq"]), device="cuda")
    labels = ids
    if "target" in c:
        labels = torch.randint(3, config.vocab_size, (n, c["target"]), device="cuda")
    if head == CLASSES:
        labels = label
    if head == TOKENS:
        labels = torch.zeros_like(ids)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def cast(c, batch, half, torch):
    """Pictures and sound come in the type of the weights where there is no autocast."""
    narrow = c["kind"] == "bf16" or c["kind"] == "lora" and c.get("weights") != "float32"
    for name in ("input_values", "input_features", "pixel_values"):
        if name in batch and narrow and half is None:
            batch[name] = batch[name].to(torch.bfloat16)


def rehearsed(c):
    """Trains; the rehearsal ends it after its steps."""
    import torch

    setups.described, setups.blocks = described, blocks
    torch.manual_seed(0)
    config = described(c)[1]
    if c["kind"] == "ddp":
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    model, half = setups.build(c, torch)
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = optimizer(c["opt"], trained, torch)
    scaler = torch.amp.GradScaler("cuda", enabled=half is torch.float16)
    for _ in range(STEPS):
        model.train()
        for _ in range(c.get("accumulate", 1)):
            batch = given(c, torch, c["batch"], config)
            cast(c, batch, half, torch)
            with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
                loss = model(**batch).loss
            scaler.scale(loss / c.get("accumulate", 1)).backward()
        if c.get("clip"):
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=not c.get("keep_grads"))
        if c.get("eval_batch"):
            model.eval()
            with torch.no_grad():
                batch = given(c, torch, c["eval_batch"], config)
                cast(c, batch, half, torch)
                with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
                    model(**batch)


def optimizer(name, parameters, torch):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3)
    return setups.optimizer(name, parameters, torch)


def serve():
    """Rehearses setups in forks of this process, which has the libraries: a seed and the file for
    its record a line on standard input, how it ended on standard output."""
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers

    for f in FAMILIES.values():
        getattr(transformers, f["prefix"] + f["head"][0], None)
    from _memroom_probe.rehearse import waiting

    waiting.children.append(os.getpid())  # it waits for the next setup
    rehearsal = next(o for o in gc.get_objects() if type(o).__name__ == "Rehearsal")
    for line in sys.stdin:
        seed, path = line.split()
        child = os.fork()
        if child == 0:
            play(rehearsal, int(seed), path)
        status, used = os.wait4(child, 0)[1:]
        print(
            "%.1f s of processor time" % (used.ru_utime + used.ru_stime),
            file=sys.stderr,
            flush=True,
        )
        print(os.waitstatus_to_exitcode(status), flush=True)


def play(rehearsal, seed, path):
    import resource
    import traceback

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    rehearsal.path = path
    c = setup(seed)
    rehearsal.script.steps = STEPS
    rehearsal.target["ranks"] = rehearsal.target["count"] = c.get("world", 1)
    sys.stdout = sys.stderr
    try:
        rehearsed(c)
        rehearsal.over("end")
    except BaseException:
        with open(path + ".error", "w") as file:
            file.write(traceback.format_exc()[-1500:])
        os._exit(1)


# ---------------------------------------------------------------- memroom's two answers


class Rehearsals:
    """A process that rehearses, started through memroom so that the probe is in it."""

    def __init__(self, memroom, python, folder):
        self.memroom, self.python, self.folder = memroom, python, folder
        environment = os.path.join(folder, "environment")
        script = os.path.join(folder, "keep.sh")
        with open(script, "w") as file:  # what memroom tells a command that it rehearses
            told = "cp -r $(dirname $MEMROOM_APPLY) %s/kept; env > %s\n"
            file.write(told % (folder, environment))
        command = [memroom, "plan", "--rehearse", "--gpu", "H200", "--", "sh", script]
        subprocess.run(command, capture_output=True)
        with open(environment) as file:
            env = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
        asked = os.path.join(folder, "kept", "target.json")
        with open(asked) as file:
            target = json.load(file)
        known = os.path.join(folder, "kept", "workspaces")
        if os.path.exists(known):
            target["target"]["workspaces"] = known
        with open(asked, "w") as file:
            json.dump(target, file)
        env.update(MEMROOM_APPLY=asked, MEMROOM_REHEARSE=os.path.join(folder, "none"))
        self.env = env | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.start()

    def start(self):
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [self.python, os.path.abspath(__file__), "serve"]
        with open(os.path.join(self.folder, "log"), "a") as log:
            self.process = subprocess.Popen(command, stderr=log, env=self.env, **pipe)

    def truth(self, seed):
        path = os.path.join(self.folder, "record-%d" % seed)
        if self.process.poll() is not None:
            print("the server ended with", self.process.returncode)
            self.start()
        self.process.stdin.write("%d %s\n" % (seed, path))
        self.process.stdin.flush()
        status = self.process.stdout.readline().strip()
        if not status:
            self.process.wait()
        if not os.path.exists(path):
            error = "ended with " + status
            if os.path.exists(path + ".error"):
                with open(path + ".error") as file:
                    error = file.read()
            return {"error": error[-900:]}
        copy = 'cp "%s" "$MEMROOM_REHEARSE"' % path
        command = [self.memroom, "plan", "--rehearse", "--gpu", "H200", "--json"]
        command += ["--ranks", str(setup(seed).get("world", 1)), "--"]
        done = subprocess.run([*command, "sh", "-c", copy], capture_output=True, text=True)
        if not os.environ.get("SWEEP_KEEP"):
            os.remove(path)
        try:
            said = json.loads(done.stdout)
            return {k: said[k] for k in ("allocated_peak", "reserved_peak", "device_peak")}
        except (ValueError, KeyError):
            return {"error": (done.stderr + done.stdout)[-600:]}


def ask(memroom, c, folder):
    """What memroom says without Python."""
    path = os.path.join(folder, c["model"] + ".json")
    with open(path, "w") as file:
        json.dump(written(c), file)
    command = [memroom, "plan", path, *flags(c), "--python", "none"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        said = json.loads(done.stdout)
        kept = ("allocated_peak", "reserved_peak", "device_peak", "low", "high")
        return {k: said[k] for k in kept}
    except (ValueError, KeyError):
        return {"error": (done.stderr + done.stdout)[-400:]}


def flags(c):
    out = setups.flags(c)
    at = out.index("--precision") + 1
    if c.get("weights") == "float32":
        out[at] = "amp_bf16" if c.get("amp") else "fp32"
    elif c["kind"] == "lora" and c.get("amp"):
        out += ["--autocast"]
    return out


def run(args):
    done = rows(args.out) if os.path.exists(args.out) else {}
    only = set(args.only.split(",")) if args.only else None
    with tempfile.TemporaryDirectory() as folder:
        folder = os.environ.get("SWEEP_KEEP") or folder
        rehearsals = Rehearsals(args.memroom, args.python, folder)
        for seed in range(args.first, args.last):
            c = setup(seed)
            if seed in done or only and not only & {c["family"], c["kind"]}:
                continue
            row = dict(seed=seed, setup=c, said=ask(args.memroom, c, folder))
            row["true"] = rehearsals.truth(seed)
            with open(args.out, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(line_of(row), flush=True)
        rehearsals.process.stdin.close()


def rows(path):
    with open(path) as file:
        return {row["seed"]: row for row in map(json.loads, file)}


def again(args):
    found = rows(args.out)
    with tempfile.TemporaryDirectory() as folder:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(
                pool.map(lambda row: ask(args.memroom, row["setup"], folder), found.values())
            )
    with open(args.out, "w") as file:
        for row, said in zip(found.values(), answers):
            file.write(json.dumps(dict(row, said=said)) + "\n")
    show(args)


def off(row, what):
    return 100 * (row["said"][what] / row["true"][what] - 1)


def outside(row):
    said, true = row["said"], row["true"]["reserved_peak"]
    context = said["device_peak"] - said["reserved_peak"]
    return not said["low"] <= true + context <= said["high"]


def words(c):
    shown = {k: v for k, v in c.items() if k not in ("name", "model", "family", "kind", "values")}
    return " ".join("%s=%s" % (k, v) for k, v in shown.items())


def line_of(row):
    c = row["setup"]
    head = "%5d %-18s %-6s" % (row["seed"], c["family"], c["kind"])
    for side in ("said", "true"):
        if "error" in row[side]:
            return "%s %s: %s" % (head, side, row[side]["error"].strip().splitlines()[-1][:150])
    return "%s %7d MiB reserved %+7.2f %% allocated %+7.2f %% %-7s %s" % (
        head,
        row["true"]["reserved_peak"] >> 20,
        off(row, "reserved_peak"),
        off(row, "allocated_peak"),
        "outside" if outside(row) else "",
        words(c),
    )


def show(args):
    found = list(rows(args.out).values())
    good = [r for r in found if "error" not in r["said"] and "error" not in r["true"]]
    for row in found:
        if row not in good:
            print(line_of(row))
    good.sort(key=lambda r: -abs(off(r, "reserved_peak")) - 3 * abs(off(r, "allocated_peak")))
    for row in good:
        if abs(off(row, "reserved_peak")) > 0.01 or abs(off(row, "allocated_peak")) > 0.01:
            print(line_of(row))
    for key in ("kind", "family"):
        for value in sorted({r["setup"][key] for r in good}):
            print("%-20s %s" % (value, figures([r for r in good if r["setup"][key] == value])))
    print("%-20s %s" % ("all", figures(good)))


def figures(group):
    sizes = sorted(abs(off(r, "reserved_peak")) for r in group)
    exact = sum(r["said"]["allocated_peak"] == r["true"]["allocated_peak"] for r in group)
    return "%4d setups: reserved median %5.2f %%, 90th %6.2f %%, outside %d, allocated equal %d" % (
        len(group),
        statistics.median(sizes),
        sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        sum(map(outside, group)),
        exact,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("run")
    for name in ("memroom", "python", "out"):
        part.add_argument(name)
    part.add_argument("--from", type=int, default=0, dest="first")
    part.add_argument("--to", type=int, default=100, dest="last")
    part.add_argument("--only", default="")
    part = parts.add_parser("again")
    part.add_argument("memroom")
    part.add_argument("out")
    parts.add_parser("show").add_argument("out")
    parts.add_parser("serve")
    args = parser.parse_args()
    if args.part == "serve":
        serve()
        return
    {"run": run, "again": again, "show": show}[args.part](args)


if __name__ == "__main__":
    main()
