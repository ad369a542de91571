"""Training jobs of five styles for bench/gpu/fit.py: `python fit_jobs.py NAME [flags]`. They know
nothing of memroom.

Every job prints one "step N loss X" line a step; FIT_SIDE names a file for its allocator peaks and
step times, FIT_FRACTION makes the card smaller, FIT_TINY the model (to try a job on a CPU),
FIT_SEED another seed, FIT_DROPOUT a dropout.
"""

import json
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = bool(os.environ.get("FIT_TINY"))
DEVICE = "cuda" if torch.cuda.is_available() and not TINY else "cpu"
STEPS = int(os.environ.get("FIT_STEPS", "4" if TINY else "20"))
DROPOUT = float(os.environ.get("FIT_DROPOUT", "0"))
SEED = int(os.environ.get("FIT_SEED", "0"))
BEGAN = time.perf_counter()
times = []


def begin():
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    if DEVICE == "cuda" and os.environ.get("FIT_FRACTION"):
        torch.cuda.set_per_process_memory_fraction(float(os.environ["FIT_FRACTION"]))


def tick():
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    times.append(time.perf_counter())


def tell(step, loss):
    tick()
    print("step %d loss %.9g" % (step, loss), flush=True)


def end():
    if not os.environ.get("FIT_SIDE"):
        return
    gaps = sorted(b - a for a, b in zip(times[2:], times[3:])) or [0]
    side = {"seconds": gaps[len(gaps) // 2], "steps": len(times)}
    if DEVICE == "cuda":
        free, total = torch.cuda.mem_get_info()
        side.update(
            reserved=torch.cuda.max_memory_reserved(),
            allocated=torch.cuda.max_memory_allocated(),
            total=total,
        )
    with open(os.environ["FIT_SIDE"], "w") as f:
        json.dump(side, f)


def tokens(rows, length, vocabulary, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, vocabulary, (rows, length), generator=g)
    y = x.clone()
    for i in range(rows):
        y[i, length // 4 + (i * 37) % (3 * length // 4) :] = -100
    return x.to(DEVICE), y.to(DEVICE)


def pictures(rows, size, classes, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, size, size, generator=g).to(DEVICE), torch.randint(
        0, classes, (rows,), generator=g
    ).to(DEVICE)


def gpt2(layers=12, width=768, vocabulary=50257, length=512):
    from transformers import GPT2Config, GPT2LMHeadModel

    if TINY:
        layers, width, vocabulary, length = 2, 24, 60, 32
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers,
            n_head=12,
            n_embd=width,
            n_positions=length,
            vocab_size=vocabulary,
            resid_pdrop=DROPOUT,
            embd_pdrop=DROPOUT,
            attn_pdrop=DROPOUT,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def size(full, tiny):
    return tiny if TINY else full


def by_hand(blocks):
    """FIT_HAND_BLOCKS=N: the first N blocks checkpointed, as one would write it."""
    from torch.utils.checkpoint import checkpoint

    for block in list(blocks)[: int(os.environ.get("FIT_HAND_BLOCKS", "0"))]:
        block.forward = lambda *a, inner=block.forward, **k: checkpoint(
            inner, *a, use_reentrant=False, **k
        )


def recomputed(model, x):
    """FIT_HAND_PIECES=N, FIT_HAND_KEEP=K: the batch in pieces, all but K of them under
    checkpointing, as one would write it.
    """
    from torch.utils.checkpoint import checkpoint

    pieces, keep = (
        int(os.environ.get("FIT_HAND_PIECES", "1")),
        int(os.environ.get("FIT_HAND_KEEP", "0")),
    )
    if pieces < 2:
        return model(x)
    parts = x.chunk(pieces)
    return torch.cat(
        [
            checkpoint(model, part, use_reentrant=False) if i < len(parts) - keep else model(part)
            for i, part in enumerate(parts)
        ]
    )


# --- plain loops


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT)
        )
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for z in self.qkv(self.n1(x)).split(c, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.mlp(self.n2(x))


class NanoGPT(nn.Module):
    """The loss comes out of the model, as in nanoGPT."""

    def __init__(self, layers, width, heads, vocabulary, length):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-100
            )
        return logits, loss


def plain_nanogpt():
    rows, length, vocabulary = size(24, 6), size(512, 16), size(32000, 50)
    model = NanoGPT(size(12, 2), size(768, 24), 12, vocabulary, length).to(DEVICE)
    by_hand(model.h)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        x, y = tokens(rows, length, vocabulary, step)
        optimizer.zero_grad(set_to_none=True)
        pieces = int(os.environ.get("FIT_HAND_PIECES", "1"))
        if pieces > 1:  # accumulation as one would write it, with the weights right
            counted, total = (y != -100).sum(), 0.0
            for a, b in zip(x.chunk(pieces), y.chunk(pieces)):
                part = model(a, b)[1] * ((b != -100).sum() / counted)
                part.backward()
                total = total + part.detach()
            loss = total
        else:
            logits, loss = model(x, y)
            loss.backward()
        optimizer.step()
        tell(step, loss.item())


def plain_gpt2_outside():
    """Batches made by hand, the loss computed in the loop."""
    rows, length, vocabulary = size(12, 6), size(512, 16), size(50257, 60)
    model = gpt2().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    for step in range(STEPS):
        x, y = tokens(rows, length, vocabulary, step)
        optimizer.zero_grad()
        logits = model(input_ids=x).logits
        loss = loss_function(logits[:, :-1].reshape(-1, logits.size(-1)), y[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tell(step, loss.item())


def plain_encoder():
    """nn.TransformerEncoder on sequences, a classifier on top, evaluation every few steps."""
    rows, length, width = size(192, 8), size(512, 12), size(512, 16)

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                width, size(8, 2), 4 * width, dropout=DROPOUT, batch_first=True
            )
            self.embed = nn.Embedding(1000, width)
            self.encoder = nn.TransformerEncoder(layer, size(6, 2), enable_nested_tensor=False)
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            return self.head(self.encoder(self.embed(x)).mean(1))

    model = Classifier().to(DEVICE)
    by_hand(model.encoder.layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        x, _ = tokens(rows, length, 1000, step)
        y = x.sum(1) % 10
        model.train()
        loss = F.cross_entropy(recomputed(model, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(step, loss.item())
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                print("accuracy %.3f" % (model(x).argmax(1) == y).float().mean().item(), flush=True)


# --- transformers' Trainer


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, length, vocabulary, classes=0):
        x, y = (t.cpu() for t in tokens(count, length, vocabulary, 0))
        self.x, self.y, self.classes = x, y, classes

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        labels = int(self.x[i].sum()) % self.classes if self.classes else self.y[i]
        return {"input_ids": self.x[i], "labels": labels}


def with_trainer(model, data, arguments):
    from transformers import Trainer, TrainerCallback

    class Tell(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            if args.auto_find_batch_size:
                print(
                    "try",
                    state.train_batch_size,
                    "at %.1f" % (time.perf_counter() - BEGAN),
                    flush=True,
                )

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in (logs or {}):
                tell(state.global_step - 1, logs["loss"])

    Trainer(model, arguments, train_dataset=data, callbacks=[Tell()]).train()


def trainer_settings(rows, **more):
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=os.environ.get("FIT_OUT", "out"),
        per_device_train_batch_size=rows,
        max_steps=STEPS,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        learning_rate=1e-4,
        disable_tqdm=True,
        seed=SEED,
        use_cpu=DEVICE == "cpu",
        **more,
    )


def hf_gpt2():
    rows, length, vocabulary = size(16, 6), size(512, 16), size(50257, 60)
    with_trainer(
        gpt2(),
        Sentences(rows * STEPS, length, vocabulary),
        trainer_settings(rows, lr_scheduler_type="cosine"),
    )


def hf_bert():
    """Batch size and accumulation are arguments on the command line."""
    import argparse

    from transformers import BertConfig, BertForSequenceClassification

    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("--per_device_train_batch_size", type=int, default=size(96, 8))
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    options = parser.parse_args()
    length = size(512, 16)
    shape = (
        dict(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            vocab_size=60,
        )
        if TINY
        else {}
    )
    model = BertForSequenceClassification(
        BertConfig(
            **shape, hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT, num_labels=4
        )
    )
    effective = options.per_device_train_batch_size * options.gradient_accumulation_steps
    data = Sentences(effective * STEPS, length, size(30000, 60), classes=4)
    with_trainer(
        model,
        data,
        trainer_settings(
            options.per_device_train_batch_size,
            gradient_accumulation_steps=options.gradient_accumulation_steps,
        ),
    )


# --- Lightning


def with_lightning(network, batches, loss, rate):
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, index):
            value = loss(self.network, batch)
            tell(index, value.item())
            return value

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=rate)
            return [optimizer], [
                {
                    "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
                    "interval": "step",
                }
            ]

    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="gpu" if DEVICE == "cuda" else "cpu",
        devices=1,
        logger=False,
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Lit(), torch.utils.data.DataLoader(batches, batch_size=None))


def lightning_vit():
    import torchvision

    rows, edge = size(64, 6), size(224, 32)
    network = torchvision.models.VisionTransformer(
        edge, size(16, 8), size(12, 2), size(12, 2), size(768, 16), size(3072, 32), dropout=DROPOUT
    )
    with_lightning(
        network,
        [pictures(rows, edge, 1000, s) for s in range(STEPS if TINY else 4)]
        * (1 if TINY else STEPS // 4),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        1e-4,
    )


def lightning_opt():
    from transformers import OPTConfig, OPTForCausalLM

    rows, length, vocabulary = size(12, 6), size(512, 16), size(50272, 60)
    shape = (
        dict(
            hidden_size=24,
            num_hidden_layers=2,
            ffn_dim=48,
            num_attention_heads=2,
            vocab_size=60,
            word_embed_proj_dim=24,
        )
        if TINY
        else {}
    )
    network = OPTForCausalLM(OPTConfig(**shape, dropout=DROPOUT, attention_dropout=DROPOUT))
    with_lightning(
        network,
        [tokens(rows, length, vocabulary, s) for s in range(STEPS)],
        lambda m, b: m(input_ids=b[0], labels=b[1]).loss,
        1e-4,
    )


# --- the style of torchvision's reference scripts


def reference(model, rows, edge, optimizer, smoothing=0.0):
    criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
    model.to(DEVICE)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.5)

    def train_one_epoch(loader):
        model.train()
        for i, (image, target) in enumerate(loader):
            output = model(image)
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            top = (output.argmax(1) == target).float().mean()
            tell(i, loss.item())
            assert 0 <= top.item() <= 1

    train_one_epoch(pictures(rows, edge, 100, s % 4) for s in range(STEPS))


def vision_resnet50():
    import torchvision

    model = (
        torchvision.models.resnet18(num_classes=100)
        if TINY
        else torchvision.models.resnet50(num_classes=100)
    )
    by_hand(b for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for b in stage)
    # Tiny steps: under a cap the second loss differs in the seventh digit, with or without a
    # remedy, and at 1e-4 that has grown to 5e-3 after twenty steps (docs/fit.md).
    reference(
        model,
        size(96, 6),
        size(224, 32),
        torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9, weight_decay=1e-4),
    )


def vision_convnext():
    import torchvision

    model = torchvision.models.convnext_tiny(num_classes=100, stochastic_depth_prob=0.0)
    reference(
        model,
        size(64, 4),
        size(224, 32),
        torch.optim.AdamW(model.parameters(), 5e-5),
        smoothing=0.1,
    )


# --- custom loops with GradScaler and scheduler


def scaled(model, batches, loss_of, half):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-4, total_steps=STEPS + 1)
    scaler = torch.amp.GradScaler(DEVICE)
    for step, batch in enumerate(batches):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            DEVICE, dtype=torch.float16 if DEVICE == "cuda" else torch.bfloat16, enabled=half
        ):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        tell(step, loss.item())


def scaler_gpt2():
    rows, length, vocabulary = size(16, 6), size(512, 16), size(50257, 60)
    scaled(
        gpt2().to(DEVICE),
        (tokens(rows, length, vocabulary, s) for s in range(STEPS)),
        lambda m, b: m(input_ids=b[0], labels=b[1]).loss,
        False,
    )


def scaler_vit():
    import torchvision

    rows, edge = size(64, 6), size(224, 32)
    model = torchvision.models.VisionTransformer(
        edge, size(16, 8), size(12, 2), size(12, 2), size(768, 16), size(3072, 32), dropout=DROPOUT
    ).to(DEVICE)
    by_hand(model.encoder.layers)
    scaled(
        model,
        (pictures(rows, edge, 1000, s % 4) for s in range(STEPS)),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        False,
    )


def scaler_gpt2_fp16():
    rows, length, vocabulary = size(24, 6), size(512, 16), size(50257, 60)
    scaled(
        gpt2().to(DEVICE),
        (tokens(rows, length, vocabulary, s) for s in range(STEPS)),
        lambda m, b: m(input_ids=b[0], labels=b[1]).loss,
        True,
    )


# --- what others offer


def peer_accelerate():
    """accelerate's decorator: halves the batch until it fits; the effective batch is not kept."""
    from accelerate.utils import find_executable_batch_size

    length, vocabulary = size(512, 16), size(32000, 50)

    @find_executable_batch_size(starting_batch_size=size(24, 6))
    def run(rows):
        print("try", rows, "at %.1f" % (time.perf_counter() - BEGAN), flush=True)
        torch.manual_seed(SEED)
        model = NanoGPT(size(12, 2), size(768, 24), 12, vocabulary, length).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for step in range(STEPS):
            x, y = tokens(rows, length, vocabulary, step)
            loss = model(x, y)[1]
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            tell(step, loss.item())

    run()


def peer_transformers():
    """auto_find_batch_size of the Trainer."""
    rows, length, vocabulary = size(16, 6), size(512, 16), size(50257, 60)

    with_trainer(
        gpt2(),
        Sentences(rows * STEPS, length, vocabulary),
        trainer_settings(rows, lr_scheduler_type="cosine", auto_find_batch_size=True),
    )


JOBS = {
    f.__name__: f
    for f in (
        plain_nanogpt,
        plain_gpt2_outside,
        plain_encoder,
        hf_gpt2,
        hf_bert,
        lightning_vit,
        lightning_opt,
        vision_resnet50,
        vision_convnext,
        scaler_gpt2,
        scaler_vit,
        scaler_gpt2_fp16,
        peer_accelerate,
        peer_transformers,
    )
}

if __name__ == "__main__":
    begin()
    JOBS[sys.argv[1]]()
    end()
