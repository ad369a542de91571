"""Sweeps over every model type of the installed transformers: builds a small one from its
configuration, rehearses a standard step on fake tensors, and counts the types that were answered.

    python bench/anyarch/sweep.py OUT [--jobs 4] [--types bert,vit]
        [--settings '[{"batch": 2, "seq": 64}, {"batch": 8, "seq": 200}]']

Types that have a head to train are swept, or those that are named. A type that is in OUT is not run
again. OUT/TYPE.json holds how it ended, OUT/TYPE.record the rehearsal's timeline, OUT/table.txt how
every type ended and how long it took.
"""

import argparse
import copy
import gc
import importlib
import json
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROBE = os.path.join(HERE, "..", "..", "probe", "py")
CARD = {
    "name": "NVIDIA H200",
    "total_memory": 140 << 30,
    "sms": 132,
    "major": 9,
    "minor": 0,
    "steps": 2,
}
DEEP = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "depth",
    "encoder_num_hidden_layers",
    "decoder_num_hidden_layers",
)
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types")
LIMIT = 90  # seconds of processor time for one type


def shallow(config, seen=None):
    """A configuration with two layers where there were more, and no other change."""
    seen = seen if seen is not None else set()
    if id(config) in seen:
        return config
    seen.add(id(config))
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            shallow(value, seen)
        elif name in DEEP and isinstance(value, int) and value > 2:
            setattr(config, name, 2)
    layers = getattr(config, "num_hidden_layers", None)
    for name in PER_LAYER:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and isinstance(layers, int) and len(value) > layers:
            setattr(config, name, list(value)[:layers])
    return config


# Tables of models that others use: what they return is nobody's loss.
PARTS = ("BACKBONE", "MODEL_MAPPING", "FOR_IMAGE_MAPPING", "TEXT_ENCODING", "AUDIO_TOKENIZATION")


def trainable(auto, known):
    """The types that have a model with a head."""
    found = set()
    for table in dir(auto):
        if table.startswith("MODEL_") and table.endswith("_NAMES"):
            if not any(p in table for p in PARTS):
                found |= set(getattr(auto, table))
    return sorted(found & set(known))


# What the library's own default leaves out and every published configuration has. A dot leads into
# a configuration inside; a function gets the values that are there.
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
FILLED = {
    "aya_vision": {"vision_config.num_attention_heads": 16},
    "chameleon": {"vocabulary_map": lambda: image_words("IMGIMG%sZ", 8192, 4, letters=True)},
    "cohere_compass": {
        "text_config.rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}
    },
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
    },
    "dbrx": {
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "deepseek_ocr2": {
        "text_config.num_hidden_layers": 2,
        "text_config.mlp_layer_types": ["dense", "sparse"],
    },
    "deepseek_v2": {
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "n_routed_experts": 32,
        "moe_intermediate_size": 1408,
        "topk_method": "group_limited_greedy",
        "n_group": 8,
        "topk_group": 3,
        "hidden_size": 1024,
        "intermediate_size": 2816,
    },
    "deepseek_v3": {  # of two layers one with experts, and small enough to show activations
        "first_k_dense_replace": 1,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "moe_intermediate_size": 512,
        "n_routed_experts": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32000,
    },
    "diffusion_gemma": {
        "text_config.num_experts": 8,
        "text_config.top_k_experts": 2,
        "text_config.moe_intermediate_size": 704,
    },
    "dinov3_vit": {"num_register_tokens": 4, "architectures": ["DINOv3ViTModel"]},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "emu3": {"vocabulary_map": lambda: image_words("<|visual token %s|>", 32768, 151854)},
    "esm": {
        "vocab_size": 33,
        "pad_token_id": 1,
        "mask_token_id": 32,
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "num_hidden_layers": 2,
            "hidden_size_per_layer_input": 0,
        }
    },
    "gemma4_unified_assistant": {
        "text_config": {"model_type": "gemma4_unified_text", "num_hidden_layers": 2}
    },
    "glm4_moe": {"head_dim": 128, "use_qk_norm": True},
    "gpt_oss": {"hidden_size": 1024, "intermediate_size": 1024, "num_local_experts": 16},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config.head_dim": 128},
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 128},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe": {
        "talker_config.text_config.shared_expert_intermediate_size": 768,
        "talker_config.spatial_merge_size": 2,
    },
}


def image_words(form, count, first, letters=False):
    """The names that a vocabulary has for pieces of images, and for an image."""
    words = {"<image>": first + count + 1, "<|extra_200|>": first + count + 2}
    for i in range(count):
        name = "%06d" % i
        if letters:
            name = "".join(chr(ord("A") + int(d)) for d in str(i))
        words[form % name] = first + i
    return words


def filled(kind, values):
    for path, value in FILLED.get(kind, {}).items():
        *inner, last = path.split(".")
        place = values
        for name in inner:
            place = place.setdefault(name, {})
        place[last] = value() if callable(value) else copy.deepcopy(value)
    return values


# Types that are two others: theirs are the common ones.
PAIRS = {
    "encoder-decoder": {"encoder": "bert", "decoder": "bert"},
    "vision-encoder-decoder": {"encoder": "vit", "decoder": "gpt2"},
    "speech-encoder-decoder": {"encoder": "wav2vec2", "decoder": "bert"},
    "vision-text-dual-encoder": {"vision_config": "vit", "text_config": "bert"},
    "musicgen": {"text_encoder": "t5", "audio_encoder": "encodec", "decoder": "musicgen_decoder"},
    "musicgen_melody": {
        "text_encoder": "t5",
        "audio_encoder": "encodec",
        "decoder": "musicgen_melody_decoder",
    },
}


def values_of(kind, deep=False):
    """The default configuration of a type, made shallow where that still builds."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind in PAIRS:
        both = {part: values_of(inner) for part, inner in PAIRS[kind].items()}
        if "encoder" in both:
            both["decoder"].update(is_decoder=True, add_cross_attention=True)
        ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "is_encoder_decoder": True}
        return {"model_type": kind, **both, **ids}
    if deep:
        values = CONFIG_MAPPING[kind]().to_dict()
        return filled(kind, {**values, "model_type": kind, "architectures": None})
    config = CONFIG_MAPPING[kind]()
    try:
        values = shallow(config).to_dict()
        CONFIG_MAPPING[kind].from_dict(copy.deepcopy(values))  # some take what they are given apart
    except Exception:
        values = CONFIG_MAPPING[kind]().to_dict()
    values.pop("architectures", None)
    return filled(kind, {**values, "model_type": kind})


def one(kind, out, asked, rehearsal):
    """Runs one type in this process and ends it."""
    import torch
    from _memroom_probe.standard import main, models

    torch.set_num_threads(1)  # before autograd's threads are there: see loop.py
    if os.path.exists("/dev/nvidiactl"):  # this process was forked
        importlib.import_module("_memroom_probe.rehearse.cudnn").asked = False
    log = open(os.path.join(out, kind + ".log"), "w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    spec = dict(main.SPEC, steps=3, attn="sdpa", **asked)  # as the binary asks
    try:
        values = values_of(kind)
        with open(os.path.join(out, kind + ".config"), "w") as file:
            json.dump(values, file, default=str)
        rehearsal.path = os.path.join(out, kind + ".record")
        try:
            main.train(values, spec, torch)
        except models.Unbuildable:  # some have parts for each of their layers
            main.train(values_of(kind, deep=True), spec, torch)
        end(out, kind, error="the rehearsal did not end")
    except SystemExit:
        pass
    except BaseException as e:
        end(out, kind, error="%s: %.900s" % (type(e).__name__, e))
    os._exit(1)


def end(out, kind, **what):
    with open(os.path.join(out, kind + ".json"), "w") as file:
        json.dump(dict(what, type=kind), file)
    os._exit(0)


def answered(out, kind):
    """How a type ended: None is not yet."""
    path = os.path.join(out, kind + ".json")
    if os.path.exists(path):
        with open(path) as file:
            return json.load(file)
    path = os.path.join(out, kind + ".record")
    if os.path.exists(path):
        with open(path) as file:
            last = json.loads(file.readlines()[-1])["end"]
        return {"type": kind, "steps": last.get("steps", 0), "error": last.get("error")}
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--types", default="")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--precision", default="amp_bf16")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument(
        "--settings", default="", help="a JSON list of these five; the Nth goes to OUT/N"
    )
    args = parser.parse_args()
    sys.path.insert(0, PROBE)
    install = importlib.import_module("_memroom_probe.rehearse.install")
    importlib.import_module("_memroom_probe.rehearse.waiting").IDLE = 1 << 30  # this one waits
    os.makedirs(args.out, exist_ok=True)
    rehearsal = install.install(CARD, os.path.join(args.out, "record"))
    import torch
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    import_for_all()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    kinds = trainable(modeling_auto, CONFIG_MAPPING_NAMES)
    if args.types:
        kinds = [k for k in args.types.split(",") if k in CONFIG_MAPPING_NAMES]
    print("transformers %s, torch %s" % (transformers.__version__, torch.__version__), flush=True)
    for each in sets_of(args):
        sweep_one_set(kinds, each, rehearsal)
    sys.stdout.flush()
    os._exit(0)  # the rehearsal's own exit has nothing to write


def import_for_all():
    """Imports once what every child would import: the first optimizer imports torch's compiler."""
    for name in ("llama.modeling_llama", "vit.modeling_vit", "bart.modeling_bart"):
        importlib.import_module("transformers.models." + name)
    for name in ("torch._dynamo", "_memroom_probe.standard.main", "_memroom_probe.standard.loop"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no child looks through these objects


def sets_of(args):
    """The arguments for each set of settings, with its folder."""
    if not args.settings:
        return [args]
    return [
        argparse.Namespace(**{**vars(args), **chosen, "out": os.path.join(args.out, str(i))})
        for i, chosen in enumerate(json.loads(args.settings))
    ]


def sweep_one_set(kinds, args, rehearsal):
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "spec.json"), "w") as file:
        json.dump(spec_of(args), file)
    sweep([k for k in kinds if answered(args.out, k) is None], args, rehearsal)
    report(kinds, args.out)


def spec_of(args):
    return {
        name: getattr(args, name)
        for name in ("batch", "seq", "precision", "optimizer", "checkpointing")
    }


def sweep(kinds, args, rehearsal):
    running = {}
    waiting = list(kinds)
    while waiting or running:
        while waiting and len(running) < args.jobs:
            kind = waiting.pop(0)
            child = os.fork()
            if child == 0:
                import resource

                resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
                one(kind, args.out, spec_of(args), rehearsal)
            running[child] = (kind, time.monotonic())
        child, _, used = os.wait4(-1, os.WNOHANG)
        if child:
            kind, since = running.pop(child, (None, 0))
            if kind:
                with open(os.path.join(args.out, kind + ".took"), "w") as file:
                    json.dump([time.monotonic() - since, used.ru_utime + used.ru_stime], file)
            if kind and answered(args.out, kind) is None:
                with open(os.path.join(args.out, kind + ".json"), "w") as file:
                    json.dump({"type": kind, "error": "ran out of time"}, file)
            continue
        for child, (kind, since) in running.items():
            if time.monotonic() - since > 4 * LIMIT:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


def failed(how):
    """Whether a type was tried and gave no answer."""
    return how is not None and (bool(how.get("error")) or not how.get("steps"))


def notes(out, kind):
    """What the step said it left out."""
    path = os.path.join(out, kind + ".log")
    if not os.path.exists(path):
        return ""
    with open(path, errors="replace") as file:
        said = [line.split(": note: ", 1)[1].strip() for line in file if ": note: " in line]
    return "; ".join(said)


def took(out, kind):
    """Seconds on the clock and of the processor."""
    path = os.path.join(out, kind + ".took")
    if not os.path.exists(path):
        return 0.0, 0.0
    with open(path) as file:
        return json.load(file)


def report(kinds, out):
    good, bad = [], []
    lines = []
    begun = [k for k in kinds if answered(out, k) is not None]
    for kind in begun:
        how = answered(out, kind)
        wall, used = took(out, kind)
        spent = "%4.0f s, %4.0f s cpu" % (wall, used)
        if not failed(how):
            good.append(kind)
            lines.append("%-32s %s  answered  %s" % (kind, spent, notes(out, kind)))
        else:
            why = (how.get("error") or "ran out of time").split("\n")[0]
            bad.append((kind, why))
            lines.append("%-32s %s  no answer %.900s" % (kind, spent, why))
    with open(os.path.join(out, "table.txt"), "w") as file:
        file.write("".join(line.rstrip() + "\n" for line in lines))
    for kind, why in bad:
        print("%-32s %.300s" % (kind, why))
    print(
        "%d of %d types answered, %.1f %%"
        % (len(good), len(begun), 100 * len(good) / max(1, len(begun)))
    )
    weaker = [notes(out, k) for k in good]
    print("%d of the answers say that something stands for something else" % sum(map(bool, weaker)))


if __name__ == "__main__":
    main()
