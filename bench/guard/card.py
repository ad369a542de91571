"""Is memroom.estimate what the same code takes on a card?

    python bench/guard/card.py --memroom bin/memroom --rows ROWS [--seconds N] [NAME...]
    python bench/guard/card.py --table bench/guard/card-h200.jsonl

Models, text that is generated, and training that generates: none was used while memroom was
developed. Estimates run side by side, each in a process of its own; the card is measured by one
process after another. A row is written as soon as it is known, and not asked again. Without a card
there are only estimates, which can so be written down before the card runs. With TRL its own
trainers are measured too, and what `memroom plan --trainer` says of them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

import torch
from torch import nn

from models import HERE, Made, plain, seen, spoken, train

LONGEST = 240  # seconds for a row
Work = Callable[[], None]
Case = Callable[[], Work]  # makes models on the host; what it returns runs on the card

LONG = (8, 512)


def headed(name: str, inputs: dict[str, Any], **more: Any) -> Callable[[], Made]:
    """A model of transformers by its class, and shapes of its inputs: whole numbers are tokens."""

    def make() -> Made:
        import transformers

        kind = getattr(transformers, name)
        model = kind(kind.config_class(**more))
        return model, {
            name: torch.zeros(shape)
            if len(shape) > 2 or name == "input_values"
            else torch.ones(shape).long()
            for name, shape in inputs.items()
        }

    return make


def words(name: str, **more: Any) -> Callable[[], Made]:
    return headed(name, {"input_ids": LONG, "labels": LONG}, **more)


class Of(nn.Module):
    """One of the outputs of a model."""

    def __init__(self, inner: nn.Module, key: Any) -> None:
        super().__init__()
        self.inner, self.key = inner, key

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[self.key]


def part(key: Any, make: Callable[[], Made]) -> Callable[[], Made]:
    def made() -> Made:
        model, sample = make()
        return Of(model, key), sample

    return made


def filmed(name: str, *shape: int) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision

        return getattr(torchvision.models.video, name)(weights=None), torch.zeros(*shape)

    return make


def segmenting(name: str, *shape: int) -> Callable[[], Made]:
    def make() -> Made:
        from torchvision.models import segmentation

        model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=21)
        return model, torch.zeros(*shape)

    return part("out", make)


def twice(into: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (into, out):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(8, out), nn.SiLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, wide: int = 48, depth: int = 4) -> None:
        super().__init__()
        sizes = [wide * 2**i for i in range(depth)]
        self.down = nn.ModuleList(map(twice, [3, *sizes[:-1]], sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(sizes, sizes[1:]))
        self.join = nn.ModuleList(twice(2 * n, n) for n in sizes[:-1])
        self.head = nn.Conv2d(wide, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if i else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join)):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


class Melody(nn.Module):
    """A language model of recurrent layers in both directions."""

    def __init__(self, words: int = 12000, wide: int = 640) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, wide)
        self.layers = nn.GRU(wide, wide, 3, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(2 * wide, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layers(self.embed(ids))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


class Experts(nn.Module):
    """A transformer whose tokens go to two of eight networks, each of which computes all."""

    def __init__(self, wide: int = 512, experts: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(16000, wide)
        self.mix = nn.ModuleList(nn.MultiheadAttention(wide, 8, batch_first=True) for _ in "abcd")
        self.gate = nn.ModuleList(nn.Linear(wide, experts) for _ in "abcd")
        self.wide = nn.Parameter(torch.randn(4, experts, wide, 2 * wide) * 0.02)
        self.back = nn.Parameter(torch.randn(4, experts, 2 * wide, wide) * 0.02)
        self.norm = nn.LayerNorm(wide)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for i, (mix, gate) in enumerate(zip(self.mix, self.gate)):
            y = self.norm(x)
            x = x + mix(y, y, y, need_weights=False)[0]
            scores, chosen = gate(x).softmax(-1).topk(2)
            share = torch.zeros_like(gate(x)).scatter(-1, chosen, scores)
            inner = torch.einsum("bsd,edh->besh", self.norm(x), self.wide[i]).relu()
            x = x + torch.einsum("besh,ehd,bse->bsd", inner, self.back[i], share)
        return torch.einsum("bsd,vd->bsv", x, self.embed.weight).logsumexp(-1)


class Graph(nn.Module):
    """Graph convolutions with the whole matrix of neighbours, and attention among them."""

    def __init__(self, nodes: int = 3000, wide: int = 256) -> None:
        super().__init__()
        self.register_buffer("near", torch.rand(nodes, nodes).gt(0.99).float())
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(4))
        self.left, self.right = nn.Linear(wide, 1), nn.Linear(wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(x)
            scores = nn.functional.leaky_relu(self.left(h) + self.right(h).T, 0.2)
            share = scores.masked_fill(self.near == 0, -1e9).softmax(-1)
            x = nn.functional.elu(nn.functional.dropout(share, 0.1) @ h + self.near @ x / 30)
        return nn.functional.log_softmax(x, -1)


base = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
both = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 512}
heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
ffn = {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
MODELS: dict[str, Callable[[], Made]] = {
    "inception_v3": part(0, seen("inception_v3", 32, 3, 299, 299, init_weights=False)),
    "googlenet": part(0, seen("googlenet", 64, 3, 224, 224, init_weights=False)),
    "vgg11_bn": seen("vgg11_bn", 48, 3, 160, 160),
    "fcn_resnet50": segmenting("fcn_resnet50", 8, 3, 256, 256),
    "deeplabv3_mobilenet_v3_large": segmenting("deeplabv3_mobilenet_v3_large", 12, 3, 320, 320),
    "r3d_18": filmed("r3d_18", 8, 3, 16, 112, 112),
    "mvit_v2_s": filmed("mvit_v2_s", 4, 3, 16, 224, 224),
    "blenderbot_small": words("BlenderbotSmallForConditionalGeneration", **both, **heads, **ffn),
    "prophetnet": headed(
        "ProphetNetForConditionalGeneration",
        {"input_ids": (8, 384), "labels": (8, 384)},
        hidden_size=512,
        num_encoder_layers=3,
        num_decoder_layers=3,
        num_encoder_attention_heads=8,
        num_decoder_attention_heads=8,
    ),
    "plbart": words("PLBartForConditionalGeneration", **both, **heads, **ffn, pad_token_id=0),
    "convbert": words("ConvBertForMaskedLM", **base),
    "funnel": words("FunnelForMaskedLM", d_model=512, block_sizes=[2, 2, 2]),
    "fnet": words("FNetForMaskedLM", hidden_size=768, num_hidden_layers=8),
    "nystromformer": words("NystromformerForMaskedLM", **base, max_position_embeddings=1024),
    "xlnet": words("XLNetLMHeadModel", d_model=768, n_layer=6, n_head=12, d_inner=3072),
    "biogpt": words("BioGptForCausalLM", **dict(base, intermediate_size=3072)),
    "speech_to_text": headed(
        "Speech2TextForConditionalGeneration",
        {"input_features": (16, 800, 80), "labels": (16, 100)},
        **both,
    ),
    "unispeech": headed(
        "UniSpeechForCTC",
        {"input_values": (8, 80000), "labels": (8, 40)},
        **base,
        layerdrop=0.0,
    ),
    "poolformer": headed(
        "PoolFormerForImageClassification",
        {"pixel_values": (32, 3, 224, 224), "labels": (32,)},
    ),
    "swin2sr": part(
        "reconstruction",
        lambda: (
            headed("Swin2SRForImageSuperResolution", {}, depths=[4, 4], num_heads=[6, 6])()[0],
            torch.zeros(4, 3, 64, 64),
        ),
    ),
    "unet": plain(UNet, 8, 3, 192, 192),
    "recurrent": plain(Melody, 48, 96, kind=torch.int64),
    "experts": plain(Experts, 12, 256, kind=torch.int64),
    "graph": plain(Graph, 3000, 256),
}


def trains(make: Callable[[], Made]) -> Case:
    def case() -> Work:
        model, sample = make()
        return lambda: train(model, sample, "cuda")

    return case


def writer(kind: str, half: bool, **more: Any) -> Any:
    """A model that writes text; no token ends it."""
    model = spoken(kind, **more)()[0]
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = None, 0
    return model.to(torch.bfloat16) if half else model


def writes(kind: str, rows: int, prompt: int, tokens: int, how: Any = None, **more: Any) -> Case:
    def case() -> Work:
        model = writer(kind, True, **more).eval()

        def work() -> None:
            model.to("cuda")
            ids = torch.ones((rows, prompt), dtype=torch.int64, device="cuda")
            mask = torch.ones_like(ids)
            settings = {"max_new_tokens": tokens, "do_sample": False, **(how or {})}
            model.generate(ids, attention_mask=mask, **settings)

        return work

    return case


def chosen(model: Any, ids: torch.Tensor, tokens: int) -> torch.Tensor:
    """Log-probabilities of the last tokens."""
    logits = model(ids).logits[:, -tokens - 1 : -1]
    return torch.gather(logits.log_softmax(-1), 2, ids[:, -tokens:, None]).squeeze(2)


def reinforced(
    kind: str, rows: int, prompt: int, tokens: int, reference: bool, half: bool, **more: Any
) -> Case:
    """Answers are sampled, judged and learnt from; perhaps held to a frozen copy."""

    def case() -> Work:
        model = writer(kind, half, **more)
        frozen = copy.deepcopy(model).eval().requires_grad_(False) if reference else None

        def work() -> None:
            model.to("cuda")
            if frozen is not None:
                frozen.to("cuda")
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
            ids = torch.ones((rows, prompt), dtype=torch.int64, device="cuda")
            for _ in range(2):
                model.eval()
                with torch.no_grad():
                    answers = model.generate(ids, max_new_tokens=tokens, do_sample=True)
                    advantages = torch.randn(rows, 1, device="cuda")
                model.train()
                now = chosen(model, answers, tokens)
                loss = -((now - now.detach()).exp() * advantages).mean()
                if frozen is not None:
                    with torch.no_grad():
                        then = chosen(frozen, answers, tokens)
                    loss = loss + 0.04 * ((then - now).exp() - (then - now) - 1).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        return work

    return case


def sampled_between(kind: str, **more: Any) -> Case:
    """Training with checkpointing that writes a few samples after each step."""

    def case() -> Work:
        model = writer(kind, False, **more)

        def work() -> None:
            model.to("cuda")
            optimizer = torch.optim.AdamW(model.parameters())
            ids = torch.ones((16, 512), dtype=torch.int64, device="cuda")
            for _ in range(3):
                model.train()
                model.gradient_checkpointing_enable()
                with torch.autocast("cuda", torch.bfloat16):
                    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                model.eval()
                model.gradient_checkpointing_disable()
                model.generate(ids[:8, :64], max_new_tokens=64, do_sample=True)

        return work

    return case


def translated() -> Work:
    """transformers' Seq2SeqTrainer, which writes its answers at each evaluation."""
    import transformers

    model = writer("T5", False, **translating, num_layers=4)
    row = {"input_ids": torch.ones(256, dtype=torch.int64), "labels": torch.ones(64).long()}

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            args = transformers.Seq2SeqTrainingArguments(
                folder,
                max_steps=3,
                per_device_train_batch_size=16,
                per_device_eval_batch_size=32,
                eval_strategy="steps",
                eval_steps=2,
                save_strategy="no",
                predict_with_generate=True,
                generation_max_length=64,
                report_to=[],
                disable_tqdm=True,
            )
            transformers.Seq2SeqTrainer(
                model, args, train_dataset=[row] * 64, eval_dataset=[row] * 64
            ).train()

    return work


translating = {"d_model": 768, "d_ff": 3072, "decoder_start_token_id": 0}
wide = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16}
wider = dict(wide, intermediate_size=2816, vocab_size=32000)
slim = dict(
    hidden_size=768,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=2048,
    vocab_size=32000,
)
GENERATES = {
    "gpt2 greedy": writes("GPT2", 32, 256, 64, n_embd=1024, n_layer=12, n_head=16),
    "llama sampled": writes(
        "Llama", 64, 512, 48, {"do_sample": True}, **wider, num_key_value_heads=4
    ),
    "qwen3 four beams": writes(
        "Qwen3", 8, 384, 64, {"num_beams": 4}, **wider, num_key_value_heads=8, head_dim=64
    ),
    "phi3 greedy": writes("Phi3", 16, 1024, 48, **wider, num_key_value_heads=16, pad_token_id=0),
    "bloom greedy": writes(
        "Bloom", 16, 512, 64, hidden_size=1024, n_layer=12, n_head=16, vocab_size=32000
    ),
    "gemma2 sliding": writes(
        "Gemma2", 16, 768, 48, **wider, num_key_value_heads=4, head_dim=64, sliding_window=256
    ),
    "t5 four beams": writes("T5", 16, 512, 64, {"num_beams": 4}, **translating, num_layers=8),
    "mistral static cache": writes(
        "Mistral",
        16,
        512,
        64,
        {"cache_implementation": "static", "disable_compile": True},
        **wider,
        num_key_value_heads=4,
    ),
}
TRAINS = {
    "reinforced llama, reference": reinforced(
        "Llama", 16, 256, 64, True, False, **slim, num_key_value_heads=4
    ),
    "reinforced qwen2, bf16": reinforced(
        "Qwen2", 32, 128, 96, False, True, **slim, num_key_value_heads=6
    ),
    "gpt2 with samples": sampled_between("GPT2"),
    "t5 predict_with_generate": lambda: translated(),
}


# --- TRL's own trainers, and plans of them

TRL = {
    "trl grpo": ("grpo", 16, 256, 128),
    "trl grpo, short prompts": ("grpo", 32, 64, 192),
    "trl rloo": ("rloo", 16, 256, 128),
}
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **slim}
CONFIG.update(num_key_value_heads=4, pad_token_id=100, eos_token_id=101)


def learnt(name: str) -> Work:
    method, batch, prompt, tokens = TRL[name]
    import transformers
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"w%d" % i: i for i in range(100)} | {"<pad>": 100, "<end>": 101}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>"
    )
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    files = tempfile.TemporaryDirectory()  # a reference is read from where the model came from
    made.save_pretrained(files.name)  # a rehearsal writes no weights
    made.config.save_pretrained(files.name)
    model = transformers.LlamaForCausalLM.from_pretrained(files.name)
    text = " ".join("w%d" % (i % 100) for i in range(prompt))

    def work() -> None:
        with files as folder:
            args = getattr(trl, method.upper() + "Config")(
                output_dir=folder,
                per_device_train_batch_size=batch,
                num_generations=8,
                max_completion_length=tokens,
                generation_kwargs={"min_new_tokens": tokens},
                max_steps=2,
                report_to=[],
                save_strategy="no",
                gradient_checkpointing=False,
                bf16=True,
                optim="adamw_torch_fused",
                disable_tqdm=True,
            )
            getattr(trl, method.upper() + "Trainer")(
                model=model,
                reward_funcs=lambda completions, **_: [float(len(c)) for c in completions],
                args=args,
                train_dataset=Dataset.from_list([{"prompt": text}] * 64),
                processing_class=tokenizer,
            ).train()

    return work


CASES: dict[str, Case] = {
    **{name: trains(make) for name, make in MODELS.items()},
    **GENERATES,
    **TRAINS,
    **{name: (lambda name=name: learnt(name)) for name in TRL},  # type: ignore[misc]
}


def kind_of(name: str) -> str:
    kinds = {"models": MODELS, "generate": GENERATES, "generate in training": TRAINS, "trl": TRL}
    return next(kind for kind, names in kinds.items() if name in names)


# --- one process each


def estimated(name: str) -> list[int]:
    sys.path.insert(0, os.path.join(HERE, os.pardir, os.pardir, "python"))
    import memroom

    e = memroom.estimate(lambda: CASES[name]()(), gpu="h200")
    return [e.allocated, e.reserved, e.device]


def planned(name: str, memroom: str) -> list[int]:
    method, batch, prompt, tokens = TRL[name]
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.json")
        with open(config, "w") as file:
            json.dump(CONFIG, file)
        line = [memroom, "plan", config, "--trainer", method, "--batch", str(batch), "--json"]
        line += ["--seq", str(prompt + tokens), "--completion", str(tokens), "--gpu", "h200"]
        line += ["--precision", "amp_bf16", "--optimizer", "adamw_fused"]
        done = subprocess.run(line, capture_output=True, text=True)
    p = json.loads(done.stdout)
    return [p["allocated_peak"], p["reserved_peak"], p["device_peak"]]


def measured(name: str, turn: str) -> list[int]:
    """What the card gives up. The card is taken in turns, for as long as its context lives."""
    work = CASES[name]()
    fcntl.flock(os.open(turn, os.O_WRONLY), fcntl.LOCK_EX)  # until this process is gone
    work()
    free, total = torch.cuda.mem_get_info()
    return [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free]


# --- all


class Rows:
    """The file of rows, and the time that is left."""

    def __init__(self, path: str, seconds: float, memroom: str, turn: str) -> None:
        self.path, self.end, self.memroom = path, time.monotonic() + seconds, memroom
        self.turn = turn
        self.known = set()
        if os.path.exists(path):
            with open(path) as file:
                rows = [json.loads(line) for line in file]
            self.known = {(row["name"], row["what"]) for row in rows if "bytes" in row}

    def ask(self, name: str, what: str) -> None:
        if (name, what) in self.known:
            return
        row: dict[str, Any] = {"name": name, "kind": kind_of(name), "what": what}
        begun = time.monotonic()
        left = min(LONGEST, max(self.end - begun, 0.1))
        line = [sys.executable, os.path.abspath(__file__), "--one", what, "--memroom", self.memroom]
        line += ["--turn", self.turn, name]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=left)
            if done.returncode:
                row["error"] = done.stderr[-1500:]
            else:
                row["bytes"] = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            row["error"] = "the time ended"
        row["seconds"] = round(time.monotonic() - begun, 1)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
        said = row.get("bytes") or row["error"].strip().splitlines()[-1][:200]
        print("%-8s %-30s %5.1f s  %s" % (what, name, row["seconds"], said), flush=True)


def run_all(rows: Rows, names: list[str], workers: int) -> None:
    card = torch.cuda.is_available()
    if not card:
        print("no card here: estimates only", flush=True)
    with concurrent.futures.ThreadPoolExecutor(workers) as estimates:
        with concurrent.futures.ThreadPoolExecutor(4) as measures:  # three get ready meanwhile
            for name in names if card else ():
                measures.submit(rows.ask, name, "card")
            for name in reversed(names):  # the longest first
                estimates.submit(rows.ask, name, "estimate")
                if name in TRL:
                    estimates.submit(rows.ask, name, "plan")


def table(path: str) -> None:
    """Prints each case, and how many are within 1 and 2 % of the card."""
    found: dict[str, dict[str, Any]] = {}
    with open(path) as file:
        for row in map(json.loads, file):
            found.setdefault(row["name"], {"kind": row["kind"]})[row["what"]] = row
    near: dict[tuple[str, str], list[float]] = {}
    for name, of in found.items():
        there = of.get("card", {}).get("bytes")
        for what in ("estimate", "plan"):
            if what not in of or there is None:
                continue
            here = of[what].get("bytes")
            if here is None:
                print("%-30s %-8s no answer" % (name, what))
                near.setdefault((of["kind"], what), []).append(9)
                continue
            apart = [100 * (h / t - 1) for h, t in zip(here, there)]
            near.setdefault((of["kind"], what), []).append(max(map(abs, apart[:2])))
            print(
                "%-30s %-8s %9.1f allocated %9.1f reserved %9.1f MiB of the card: "
                "%+.2f %+.2f %+.2f %%" % (name, what, *(t / 2**20 for t in there), *apart)
            )
    for (kind, what), apart in near.items():
        count = [sum(a <= bar for a in apart) for bar in (1, 2)]
        print("%s, %s: %d cases, %d within 1 %%, %d within 2 %%" % (kind, what, len(apart), *count))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--rows")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 3))
    parser.add_argument("--table")
    parser.add_argument("--one", choices=("card", "estimate", "plan"))
    parser.add_argument("--turn")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if asked.table:
        return table(asked.table)
    memroom = os.environ["MEMROOM_BINARY"] = os.path.abspath(asked.memroom)
    if asked.one:
        one = {
            "card": lambda name: measured(name, asked.turn),
            "estimate": estimated,
            "plan": lambda name: planned(name, memroom),
        }[asked.one]
        print(json.dumps(one(asked.names[0])))
        return
    names = asked.names or [n for n in CASES if n not in TRL or importlib.util.find_spec("trl")]
    with tempfile.NamedTemporaryFile() as turn:
        rows = Rows(asked.rows, asked.seconds, memroom, asked.turn or turn.name)
        run_all(rows, names, asked.workers)


if __name__ == "__main__":
    main()
