"""What --fit chooses against the best of a grid of settings made by hand, on a real card:
`python bench/gpu/fit_grid.py --out FILE [--jobs 3] [--seconds N] [--known] [CASE...]`.

The grid is pieces x blocks x offload: the batch in 1, 2, 4 or 8 pieces with accumulation; none, a
quarter, half, three quarters or all of the blocks checkpointed; all that is saved in host memory
(torch's save_on_cpu). Each point runs without a cap and its peak of allocated bytes is read. Under
a cap, the best is the fastest of the points whose peak is below it. A point is left out where one
with no more pieces and no more blocks fits under both caps already: it only computes more. --fit
runs under the cap itself, as it would after an attempt that ran out. Then the best by hand is timed
under the same cap, in the same process, as many steps; where it runs out there, the next best.
Models with BatchNorm are not cut by hand either. Processes start side by side, but only one
computes at a time; nothing else may run on the card. A row is written as soon as it is known; rows
that are there are not run again. The jobs of which no row has ever been taken come first. --table
prints the median and the worst; rows of earlier days took a point's time without a cap where that
was shorter, so it prints both again with the time of the same run.

--known takes the points of the grid from the newest rows beside this file, because no build of ours
changes them, and times only those that may be the best anew. Where the script's own peak is another
than in those rows, the whole grid is run.
"""

import argparse
import concurrent.futures
import copy
import fcntl
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import traceback

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
HERE = os.path.dirname(os.path.abspath(__file__))
PROBE = os.environ.get("FIT_PROBE") or os.path.join(HERE, "..", "..", "probe", "py")
CAPS = (0.8, 0.6)
PIECES = (1, 2, 4, 8)
BLOCKS = (0, 0.25, 0.5, 0.75, 1)
STEPS, AWAY_STEPS, FIT_STEPS = 3, 2, 22
LAST = 6  # steps that are timed of FIT_STEPS: before them --fit still looks for its choice
CLOSE, CLOSEST = 1.1, 2  # so many points no slower than this times the best are timed again,
STALLED = 1.3  # and up to this where the allocator gave memory back in all of these
# Those of which the newest choice has no row yet.
FIRST = "bert-fp32 regnet-fp32 vit-fp32 encoder-fp32 gpt2-loss-fp32 gpt2-outside-fp32".split()


class Job:
    """make: the model; batch: tensors; loss(model, batch); blocks(model): what one would
    checkpoint; cut: pieces give the same results.
    """

    def __init__(self, make, batch, loss, blocks, cut=True, adam=True):
        self.make, self.batch, self.loss, self.blocks = make, batch, loss, blocks
        self.cut, self.adam = cut, adam


def jobs(torch):
    import torch.nn as nn
    import torch.nn.functional as F
    import torchvision
    import transformers as hf

    tiny = not torch.cuda.is_available()
    dev = "cpu" if tiny else "cuda"

    def rows(n):
        return 8 if tiny else n

    def tokens(n, length, vocabulary):
        def make():
            x = torch.randint(0, vocabulary, (rows(n), 16 if tiny else length), device=dev)
            return x, x.clone()

        return make

    def images(n, size=224):
        size = 64 if tiny else size
        return lambda: (
            torch.randn(rows(n), 3, size, size, device=dev),
            torch.randint(0, 100, (rows(n),), device=dev),
        )

    def inside(m, b):
        return m(input_ids=b[0], labels=b[1]).loss

    def outside(m, b):
        logits = m(input_ids=b[0]).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), b[1][:, 1:].flatten())

    def classify(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    def bf16(loss):
        def inner(m, b):
            with torch.autocast(dev, dtype=torch.bfloat16):
                return loss(m, b)

        return inner

    def gpt2():
        small = dict(n_layer=4, n_head=2, n_embd=32) if tiny else dict(n_layer=12, n_head=12)
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **small)
        )

    def llama():
        w = 32 if tiny else 768
        return hf.LlamaForCausalLM(
            hf.LlamaConfig(
                vocab_size=16000,
                hidden_size=w,
                intermediate_size=3 * w,
                num_hidden_layers=4 if tiny else 12,
                num_attention_heads=4 if tiny else 12,
                max_position_embeddings=512,
            )
        )

    def bert():
        w = 32 if tiny else 768
        return hf.BertForSequenceClassification(
            hf.BertConfig(
                hidden_size=w,
                intermediate_size=4 * w,
                num_hidden_layers=4 if tiny else 12,
                num_attention_heads=4 if tiny else 12,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                num_labels=4,
            )
        )

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            w = 32 if tiny else 512
            layer = nn.TransformerEncoderLayer(w, 4, 4 * w, dropout=0.0, batch_first=True)
            self.embed = nn.Embedding(1000, w)
            self.encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
            self.head = nn.Linear(w, 1000)

        def forward(self, x):
            return self.head(self.encoder(self.embed(x)).mean(1))

    class Down(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1),
                nn.GroupNorm(8, o),
                nn.SiLU(),
                nn.Conv2d(o, o, 3, padding=1),
                nn.GroupNorm(8, o),
                nn.SiLU(),
            )

        def forward(self, x):
            return self.body(x)

    class Unet(nn.Module):
        def __init__(self, w=16 if tiny else 64):
            super().__init__()
            self.down = nn.ModuleList([Down(3, w), Down(w, 2 * w), Down(2 * w, 4 * w)])
            self.middle = Down(4 * w, 4 * w)
            self.up = nn.ModuleList([Down(8 * w, 2 * w), Down(4 * w, w), Down(2 * w, w)])
            self.out = nn.Conv2d(w, 3, 1)

        def forward(self, x):
            kept = []
            for d in self.down:
                x = d(x)
                kept.append(x)
                x = F.max_pool2d(x, 2)
            x = self.middle(x)
            for u in self.up:
                x = F.interpolate(x, scale_factor=2)
                x = u(torch.cat([x, kept.pop()], 1))
            return self.out(x)

    def first(m, b):
        return F.cross_entropy(m(b[0]), b[0].sum(1) % 1000)

    def bert_loss(m, b):
        return m(input_ids=b[0], labels=b[0].sum(1) % 4).loss

    def denoise(m, b):
        return F.mse_loss(m(b[0]), b[0])

    def resnet_blocks(m):
        return [x for layer in (m.layer1, m.layer2, m.layer3, m.layer4) for x in layer]

    vision = torchvision.models
    h = lambda m: list(m.transformer.h)
    return {
        "gpt2-loss-fp32": Job(gpt2, tokens(16, 512, 50000), inside, h),
        "gpt2-outside-fp32": Job(gpt2, tokens(12, 512, 50000), outside, h, adam=False),
        "gpt2-loss-bf16": Job(gpt2, tokens(32, 512, 50000), bf16(inside), h),
        "llama-bf16": Job(
            llama, tokens(32, 512, 16000), bf16(inside), lambda m: list(m.model.layers)
        ),
        "bert-fp32": Job(
            bert, tokens(32, 384, 30000), bert_loss, lambda m: list(m.bert.encoder.layer)
        ),
        "encoder-fp32": Job(
            Encoder, tokens(96, 384, 1000), first, lambda m: list(m.encoder.layers)
        ),
        "resnet50-fp32": Job(
            lambda: vision.resnet50(num_classes=100),
            images(96),
            classify,
            resnet_blocks,
            cut=False,
            adam=False,
        ),
        "regnet-fp32": Job(
            lambda: vision.regnet_y_1_6gf(num_classes=100),
            images(64),
            classify,
            lambda m: [b for stage in m.trunk_output for b in stage],
            cut=False,
            adam=False,
        ),
        "vit-fp32": Job(
            lambda: vision.VisionTransformer(224 if not tiny else 64, 16, 8, 6, 384, 1536),
            images(96),
            classify,
            lambda m: list(m.encoder.layers),
        ),
        "swin-fp32": Job(
            lambda: vision.SwinTransformer(
                [4, 4], 96, [2, 2, 6, 2], [3, 6, 12, 24], [7, 7], stochastic_depth_prob=0.0
            ),
            images(64),
            classify,
            lambda m: [b for i in (1, 3, 5, 7) for b in m.features[i]],
        ),
        "convnext-fp32": Job(
            lambda: vision.convnext_tiny(num_classes=100, stochastic_depth_prob=0.0),
            images(64),
            classify,
            lambda m: [b for i in (1, 3, 5, 7) for b in m.features[i]],
        ),
        "unet-fp32": Job(
            Unet, images(24, 192), denoise, lambda m: [*m.down, m.middle, *m.up], adam=False
        ),
    }


class Card:
    """The card, or this machine's memory where there is none (to try the script out)."""

    def __init__(self, torch):
        self.torch, self.there = torch, torch.cuda.is_available()
        self.total = torch.cuda.get_device_properties(0).total_memory if self.there else 0

    def clean(self):
        gc.collect()
        if self.there:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def wait(self):
        if self.there:
            self.torch.cuda.synchronize()

    def peak(self):
        return self.torch.cuda.max_memory_allocated() if self.there else 1

    def flushes(self):
        return self.torch.cuda.memory_stats().get("num_alloc_retries", 0) if self.there else 0

    def allow(self, count):
        if self.there:
            self.torch.cuda.set_per_process_memory_fraction(
                min(1.0, count / self.total) if count else 1.0
            )


def train(torch, card, job, made, steps, pieces=1, share=0.0, offload=False):
    """Seconds of a step and the peak of allocated bytes, with a setting made by hand. made: the
    model, on the host.
    """
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    card.clean()
    model = copy.deepcopy(made).to("cuda" if card.there else "cpu").train()
    blocks = job.blocks(model)
    for block in blocks[: round(share * len(blocks))]:
        block.forward = lambda *a, inner=block.forward, **k: checkpoint(
            inner, *a, use_reentrant=False, **k
        )
    make = torch.optim.AdamW if job.adam else torch.optim.SGD
    optimizer = make(model.parameters(), lr=1e-4)
    batch, times, flushes = job.batch(), [], 0
    for step in range(steps):
        flushes = card.flushes() if step <= steps - LAST else flushes
        card.wait()
        begin = time.perf_counter()
        optimizer.zero_grad()
        n = len(batch[0])
        size = -(-n // pieces)
        for at in range(0, n, size):
            part = tuple(t[at : at + size] for t in batch) if pieces > 1 else batch
            if offload:
                with torch.autograd.graph.save_on_cpu(pin_memory=card.there):
                    loss = job.loss(model, part)
            else:
                loss = job.loss(model, part)
            (loss * (len(part[0]) / n)).backward()
        optimizer.step()
        loss.item()
        card.wait()
        times.append(time.perf_counter() - begin)
    late = times[-LAST:] if steps > STEPS else times[1:]
    got = {"seconds": statistics.median(late), "peak": card.peak()}
    if steps > STEPS:
        got.update(times=[round(t, 4) for t in times], flushes=card.flushes() - flushes)
    return got


def more_than_needed(point, pieces, share, grid):
    """Whether this point fits under both caps with no more of anything."""
    fits = point["peak"] <= min(CAPS) * grid[0]["peak"]
    return fits and not point["offload"] and point["pieces"] <= pieces and point["blocks"] <= share


def known_grid(name, peak):
    """The points of a job in the newest rows of earlier runs; none where its peak was another."""
    newest: list = []
    for row in rows_of(os.path.join(HERE, "fit-grid-h200.jsonl")):
        if row["job"] == name and row.get("grid"):
            newest = row["grid"]
    same = newest and abs(newest[0]["peak"] - peak) <= 0.01 * peak
    return newest if same else []


def one(name, out, known):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    sys.path.insert(0, PROBE)
    job, card = jobs(torch)[name], Card(torch)
    if card.there:
        torch.zeros(1, device="cuda")
    torch.manual_seed(0)
    made = job.make()
    with open(out + ".lock", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        plain = train(torch, card, job, made, STEPS)  # clocks, kernels, libraries
        earlier = known_grid(name, plain["peak"]) if known else []
        grid = earlier or by_hand(torch, card, job, made)
        there = {(r["job"], r["cap"]) for r in rows_of(out)}
        for cap in CAPS:
            if (name, cap) in there:
                continue
            row = {"job": name, "cap": cap, "limit": int(cap * grid[0]["peak"]), "grid": grid}
            row["grid_from"] = "earlier rows" if earlier else "this run"
            row.update(fitted(torch, card, job, made, row["limit"]))
            row["best"] = best = best_under(torch, card, job, made, grid, row["limit"])
            row["ratio"] = (
                row["ours"]["seconds"] / best["seconds"] if best and row.get("ours") else None
            )
            with open(out, "a") as f:
                f.write(json.dumps(row) + "\n")
            print(
                "%-18s cap %g: ratio %s, ours %s, best %s, %s"
                % (name, cap, row["ratio"], row.get("ours"), best, row["said"][-1:]),
                flush=True,
            )


def by_hand(torch, card, job, made):
    """The points of the grid, with what each takes. All in host memory beside all blocks is tried
    only where nothing else does: it is the slowest by far.
    """
    grid: list = []
    for pieces in PIECES if job.cut else (1,):
        for share in BLOCKS:
            if not any(more_than_needed(g, pieces, share, grid) for g in grid):
                got = train(torch, card, job, made, STEPS, pieces, share)
                grid.append(dict(got, pieces=pieces, blocks=share, offload=False))
    fits = any(g["peak"] <= min(CAPS) * grid[0]["peak"] for g in grid)
    for share in (0,) if fits else (0, 1):
        got = train(torch, card, job, made, AWAY_STEPS, 1, share, True)
        grid.append(dict(got, pieces=1, blocks=share, offload=True))
    return grid


def fitted(torch, card, job, made, limit):
    """What --fit does under the limit."""
    from _memroom_probe.fit import registry
    from _memroom_probe.fit.calls import outermost

    said: list = []
    failed = {"failed": True}
    registry.apply(
        [
            {"id": "micro_batch", "params": failed},
            {"id": "checkpointing", "params": failed},
            {"id": "activation_offload", "params": {"measured": True}},
            {"id": "optimizer_offload", "params": {"measured": True}},
        ],
        lambda kind, text, **f: said.append([kind, text, f.get("predicted", 0)]),
    )
    row: dict = {}
    card.clean()
    card.allow(limit)
    try:
        row["ours"] = train(torch, card, job, made, FIT_STEPS)
    except torch.cuda.OutOfMemoryError as why:
        row["ran_out"] = str(why)[:400]
        row["notes"] = [t for k, t, _ in said if k == "note"]
        row["where"] = [f.name for f in traceback.extract_tb(why.__traceback__)]
    card.allow(0)
    outermost.forget_all()
    row["said"] = [t for k, t, _ in said if k in ("applied", "declined")]
    row["predicted"] = max([p for k, _, p in said if k == "applied"], default=0)
    return row


def best_under(torch, card, job, made, grid, limit):
    """The fastest by hand under the limit, as it is in this run; None where none runs. The first
    that runs there and those nearly as fast are timed; more of them where a point that is fast
    without a cap stalls under it.
    """
    timed: list = []
    for point in sorted(grid, key=lambda g: g["seconds"]):
        if point["peak"] > limit:
            continue
        if timed and not worth_timing(point["seconds"], timed):
            break
        got = timed_under(torch, card, job, made, point, limit)
        if got:
            timed.append(dict({**point, **got}, known=point["seconds"]))
    return min(timed, key=lambda g: g["seconds"], default=None)


def worth_timing(seconds, timed):
    """Whether a point may be the fastest under the limit. seconds: without it; timed: points that
    were, fastest without it first.
    """
    if all(t.get("flushes") for t in timed):
        return len(timed) <= CLOSEST and seconds <= STALLED * timed[0]["known"]
    return len(timed) < CLOSEST and seconds <= CLOSE * timed[0]["known"]


def timed_under(torch, card, job, made, point, limit):
    """A point by hand, run under the limit; None where it runs out."""
    card.clean()
    card.allow(limit)
    try:
        steps = AWAY_STEPS if point["offload"] else FIT_STEPS
        how = [point[what] for what in ("pieces", "blocks", "offload")]
        return train(torch, card, job, made, steps, *how)
    except torch.cuda.OutOfMemoryError:
        return None
    finally:
        card.allow(0)


def rows_of(path):
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def table(rows):
    ratios = [r["ratio"] for r in rows if r.get("ratio")]
    for r in sorted(rows, key=lambda r: (r["job"], r["cap"])):
        best = r["best"] or {}
        print(
            "%-18s %4g  %-7s pieces %s blocks %s offload %s  ours: %s"
            % (
                r["job"],
                r["cap"],
                "%.3f" % r["ratio"] if r.get("ratio") else "ran out" if "ran_out" in r else "-",
                best.get("pieces"),
                best.get("blocks"),
                best.get("offload"),
                "; ".join(r["said"])[:90],
            )
        )
    if ratios:
        print(
            "%d of %d: median %.3f (bar 1.10), worst %.3f (bar 1.35)"
            % (len(ratios), len(rows), statistics.median(ratios), max(ratios))
        )
    timed = [r for r in rows if r.get("ratio") and r["best"].get("times")]
    same = [r["ours"]["seconds"] / statistics.median(r["best"]["times"][-LAST:]) for r in timed]
    if same:
        print(
            "with the time of the best under the cap in the same run: median %.3f, worst %.3f"
            % (statistics.median(same), max(same))
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="fit-grid.jsonl")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--known", action="store_true", help="points by hand from earlier rows")
    parser.add_argument("--one", default="")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    if options.one:
        return one(options.one, options.out, options.known)
    end = time.time() + options.seconds
    known = [r["job"] for r in rows_of(options.out)]
    if not options.table:
        import torch

        names = options.cases or [*FIRST, *(n for n in jobs(torch) if n not in FIRST)]
        wanted = [n for n in names if known.count(n) < len(CAPS)]

        def run(name):
            left = end - time.time()
            if left < 15:
                return
            try:
                subprocess.run(
                    [sys.executable, "-W", "ignore", __file__, "--one", name]
                    + ["--out", options.out]
                    + (["--known"] if options.known else []),
                    timeout=left,
                )
            except subprocess.TimeoutExpired:
                print("%s: no time is left" % name, flush=True)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, wanted))
    table(rows_of(options.out))


if __name__ == "__main__":
    main()
