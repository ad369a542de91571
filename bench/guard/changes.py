"""Does `memroom check --against` explain real commits: the right sign, the right file?

    python bench/guard/changes.py SOURCES [--memroom bin/memroom] [NAME...]

SOURCES/OWNER+NAME/repo is a clone of each repository named below; nothing of them is kept here. A
row is a commit that changed what training needs, whether it needs more or less since, the file that
did it, and a few lines that train with what the repository offers at both revisions. The rows were
written from the commits' words and diffs, before any of them was rehearsed. Beside the packages of
testenv/requirements.txt some need einops, tiktoken and numba.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
from typing import Any, Callable, NamedTuple

CARD = "H100"
Step = Callable[[], Any]


def loop(model: Any, step: Step) -> None:
    """Trains: step has the loss."""
    import torch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(3):
        step().backward()
        optimizer.step()
        optimizer.zero_grad()


def of(path: str) -> Any:
    """A class or function of the repository, such as package.module.Class."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def words(rows: int, columns: int, vocabulary: int) -> Any:
    import torch

    return torch.randint(vocabulary, (rows, columns)).cuda()


def language(model: Any, rows: int, columns: int, vocabulary: int) -> None:
    """A model that is called with its input and its target, and returns the logits and the loss."""
    ids = words(rows, columns, vocabulary)
    loop(model.cuda(), lambda: model(ids, ids)[1])


def causal(model: Any, rows: int, columns: int, vocabulary: int) -> None:
    """One with the arguments of transformers."""
    ids = words(rows, columns, vocabulary)
    loop(model.cuda(), lambda: model(input_ids=ids, labels=ids).loss)


def image(name: str, rows: int, side: int, **more: Any) -> None:
    """A model of timm, in mixed precision."""
    import torch

    model = of("timm.create_model")(name, pretrained=False, **more).cuda()
    pictures = torch.zeros(rows, 3, side, side).cuda()

    def step() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return model(pictures).sum()

    loop(model, step)


def nano_gpt(**more: Any) -> None:
    config = of("model.GPTConfig")(n_layer=4, block_size=1024, vocab_size=50304, **more)
    language(of("model.GPT")(config), 8, 1024, 50304)


def nano_chat() -> None:
    import torch

    config = of("nanochat.gpt.GPTConfig")(n_layer=6, sequence_len=1024)
    model = of("nanochat.gpt.GPT")(config).cuda()
    model.init_weights()
    ids = words(4, 1024, 50304)

    def step() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return model(ids, ids)

    loop(model, step)


def build_gpt() -> None:
    """The repository's own script, with a tokenizer that needs no network."""
    tokens = types.SimpleNamespace(encode=lambda text: list(text.encode()))
    sys.modules["tiktoken"] = types.ModuleType("tiktoken")
    setattr(sys.modules["tiktoken"], "get_encoding", lambda name: tokens)  # noqa: B010
    runpy.run_path("train_gpt2.py", run_name="__main__")


def whisper() -> None:
    import torch

    sizes = of("whisper.model.ModelDimensions")(80, 1500, 384, 6, 4, 51864, 448, 384, 6, 4)
    model = of("whisper.model.Whisper")(sizes).cuda()
    sound, ids = torch.zeros(8, 80, 3000).cuda(), words(8, 448, 51864)
    loop(model, lambda: model(sound, ids).sum())


def packed_images() -> None:
    import torch

    model = of("vit_pytorch.na_vit.NaViT")(
        image_size=256, patch_size=16, num_classes=1000, dim=512, depth=6, heads=8, mlp_dim=2048
    ).cuda()
    images = [[torch.zeros(3, 256, 256).cuda(), torch.zeros(3, 256, 128).cuda()] for _ in range(8)]
    loop(model, lambda: model(images).sum())


def video() -> None:
    import torch

    model = of("vit_pytorch.vivit.ViViT")(
        image_size=128,
        frames=16,
        image_patch_size=8,
        frame_patch_size=2,
        num_classes=1000,
        dim=512,
        spatial_depth=4,
        temporal_depth=4,
        heads=8,
        mlp_dim=1024,
        use_flash_attn=False,
    ).cuda()
    film = torch.zeros(4, 3, 16, 128, 128).cuda()
    loop(model, lambda: model(film).sum())


def any_versions() -> None:
    """Transformers asks for no releases of other packages."""
    check = types.ModuleType("transformers.dependency_versions_check")
    setattr(check, "dep_version_check", lambda *_: None)  # noqa: B010
    sys.modules[check.__name__] = check


def granite() -> None:
    import torch

    any_versions()
    config = of("transformers.GraniteMoeConfig")(
        hidden_size=512,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=49152,
    )
    model = of("transformers.GraniteMoeForCausalLM")(config).to(torch.bfloat16)
    causal(model, 4, 1024, 49152)


def wide_heads() -> None:
    import torch

    any_versions()
    config = of("transformers.LlamaConfig")(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=512,
        vocab_size=8000,
    )
    model = of("transformers.LlamaForCausalLM")(config).to(torch.bfloat16)
    causal(model, 2, 4096, 8000)


def orthogonal() -> None:
    config = of("transformers.GPT2Config")(n_layer=4)
    model = of("transformers.GPT2LMHeadModel")(config)
    blocks = of("peft.OFTConfig")(
        r=0, oft_block_size=32, target_modules=["c_attn"], fan_in_fan_out=True
    )
    causal(of("peft.get_peft_model")(model, blocks), 8, 512, 50257)


def untied() -> None:
    config = of("model.model_minimind.MiniMindConfig")(
        tie_word_embeddings=False, vocab_size=32000, num_hidden_layers=2
    )
    causal(of("model.model_minimind.MiniMindForCausalLM")(config), 4, 256, 32000)


class Change(NamedTuple):
    repository: str
    commit: str
    more: bool  # whether training needs more since
    file: str
    what: str
    train: Callable[[], None]


CHANGES = {
    "tied": Change(
        "karpathy/nanoGPT", "7c828855", False, "model.py", "embedding and head share", nano_gpt
    ),
    "flash": Change("karpathy/nanoGPT", "ae06d0b1", False, "model.py", "fused attention", nano_gpt),
    "flash-dropout": Change(
        "karpathy/nanoGPT",
        "6170531b",
        False,
        "model.py",
        "fused attention with dropout",
        lambda: nano_gpt(dropout=0.1),
    ),
    "gelu": Change("karpathy/nanoGPT", "594068e7", False, "model.py", "one-kernel GELU", nano_gpt),
    "bfloat16": Change(
        "karpathy/build-nanogpt", "177e4cd", False, "train_gpt2.py", "autocast", build_gpt
    ),
    "values": Change(
        "karpathy/nanochat", "0b58d70", True, "nanochat/gpt.py", "full value embedding", nano_chat
    ),
    "alternating": Change(
        "karpathy/nanochat", "e85db6b", False, "nanochat/gpt.py", "half the embeddings", nano_chat
    ),
    "whisper": Change(
        "openai/whisper", "27f9713", False, "whisper/model.py", "fused attention", whisper
    ),
    "twins": Change(
        "huggingface/pytorch-image-models",
        "965d0a2d",
        False,
        "timm/models/twins.py",
        "fused attention, among eleven models",
        lambda: image("twins_svt_small", 16, 224),
    ),
    "tiny-vit": Change(
        "huggingface/pytorch-image-models",
        "63417b43",
        False,
        "timm/models/tiny_vit.py",
        "fused attention",
        lambda: image("tiny_vit_11m_224", 16, 224),
    ),
    "hiera": Change(
        "huggingface/pytorch-image-models",
        "0c90043d",
        False,
        "timm/models/hiera.py",
        "a form that fused attention takes",
        lambda: image("hiera_tiny_224", 8, 448, img_size=448),
    ),
    "navit": Change(
        "lucidrains/vit-pytorch",
        "a1ee1da",
        False,
        "vit_pytorch/na_vit.py",
        "fused attention",
        packed_images,
    ),
    "vivit": Change(
        "lucidrains/vit-pytorch",
        "06a1f42",
        True,
        "vit_pytorch/vivit.py",
        "use_flash_attn=False is heeded",
        video,
    ),
    "granite": Change(
        "huggingface/transformers",
        "0af2381f7bf",
        False,
        "src/transformers/models/granitemoe/modeling_granitemoe.py",
        "logits are not upcast, in four models",
        granite,
    ),
    "wide-heads": Change(
        "huggingface/transformers",
        "9d011e8375a",
        False,
        "src/transformers/integrations/sdpa_attention.py",
        "no math kernel for heads of 512",
        wide_heads,
    ),
    "oft": Change(
        "huggingface/peft",
        "d936478f0",
        False,
        "src/peft/tuners/oft/layer.py",
        "leaner rotations, in seven files",
        orthogonal,
    ),
    "untied": Change(
        "jingyaogong/minimind",
        "5704766",
        True,
        "model/model_minimind.py",
        "tie_word_embeddings=False is heeded",
        untied,
    ),
}


def checked(sources: str, memroom: str, name: str) -> dict[str, Any]:
    """The first answer of memroom check at the commit, against its parent."""
    change = CHANGES[name]
    source = os.path.join(sources, change.repository.replace("/", "+"), "repo")
    with tempfile.TemporaryDirectory() as folder:
        tree = os.path.join(folder, "tree")
        subprocess.run(["git", "clone", "-qns", source, tree], check=True)
        code = ["git", "sparse-checkout", "set", "--no-cone", "*.py", "*.txt"]  # worktrees too
        subprocess.run(code, cwd=tree, check=True)
        subprocess.run(["git", "checkout", "-q", change.commit], cwd=tree, check=True)
        command = [sys.executable, os.path.abspath(__file__), "--train", name]
        with open(os.path.join(tree, "memroom.toml"), "w") as file:
            file.write("[[check]]\ncommand = %s\ngpu = %s\n" % (json.dumps(command), repr(CARD)))
        package = os.path.join(tree, "src") if os.path.isdir(os.path.join(tree, "src")) else tree
        done = subprocess.run(
            [memroom, "check", "--no-cache", "--json", "--against", change.commit + "~"],
            cwd=tree,
            env=dict(os.environ, PYTHONPATH=package, PYTHONDONTWRITEBYTECODE="1"),
            capture_output=True,
            text=True,
        )
    checks = json.loads(done.stdout or "{}").get("checks")
    return checks[0] if checks else {"error": (done.stderr or done.stdout)[-400:]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memroom", default="bin/memroom")
    parser.add_argument("--train")
    parser.add_argument("sources", nargs="?")
    parser.add_argument("names", nargs="*", default=list(CHANGES))
    asked = parser.parse_args()
    if asked.train:
        CHANGES[asked.train].train()
        return
    signs = files = 0
    for name in asked.names:
        change = CHANGES[name]
        answer = checked(asked.sources, os.path.abspath(asked.memroom), name)
        row = "%-34s %-11s %-40s" % (change.repository, change.commit, change.what)
        difference = answer.get("difference")
        if difference is None:
            why = answer.get("error") or answer.get("not_compared")
            print(row, "NO ANSWER:", " ".join(why.split())[:300], flush=True)
            continue
        more, places = difference["allocated"], difference["changes"]
        sign = more > 0 if change.more else more < 0
        file = bool(places) and places[0]["file"] == change.file
        signs, files = signs + sign, files + (sign and file)
        print(
            row,
            "%+9.1f MiB of %.0f" % (more / 2**20, answer["before"]["allocated_peak"] / 2**20),
            "sign right" if sign else "SIGN WRONG",
            "file right" if file else "FILE WRONG: %s" % (places[0]["file"] if places else "none"),
            flush=True,
        )
    print("%d of %d signs right, %d with the file" % (signs, len(asked.names), files))


if __name__ == "__main__":
    main()
