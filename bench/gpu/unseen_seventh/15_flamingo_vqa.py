"""Visual question answering: a frozen GPT-2 with gated cross-attention (Flamingo recipe).
Only the CNN vision tower, the Perceiver resampler and the gated layers are trained.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

cfg = dict(
    image=256,
    dim=512,
    layers=8,
    heads=8,
    latents=64,
    vocab=24000,
    text=160,
    batch=40,
    cross_every=2,
    epochs=2,
    iters=5,
)
if not CUDA:
    cfg.update(
        image=32,
        dim=32,
        layers=2,
        heads=2,
        latents=4,
        vocab=100,
        text=12,
        batch=2,
        cross_every=1,
        iters=2,
    )


class VQASet(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + 7919 * i)
        image = torch.rand(3, cfg["image"], cfg["image"], generator=g)
        question = torch.randint(5, cfg["vocab"] // 2, (cfg["text"] * 2 // 3,), generator=g)
        n_ans = int(torch.randint(cfg["text"] // 6, cfg["text"] // 3, (1,), generator=g))
        answer = torch.randint(cfg["vocab"] // 2, cfg["vocab"], (n_ans,), generator=g)
        return image, question, answer


def collate(rows):
    width = max(len(q) + len(a) for _, q, a in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, (_, q, a) in enumerate(rows):
        n = len(q) + len(a)
        ids[i, :n] = torch.cat([q, a])
        labels[i, len(q) : n] = a
    return torch.stack([r[0] for r in rows]), ids, labels


class VisionTower(nn.Sequential):
    def __init__(self, dim):
        chans = [3, dim // 8, dim // 4, dim // 2, dim]
        mods = []
        for a, b in zip(chans[:-1], chans[1:]):
            mods += [
                nn.Conv2d(a, b, 3, 2, 1),
                nn.GroupNorm(4, b),
                nn.GELU(),
                nn.Conv2d(b, b, 3, 1, 1),
                nn.GELU(),
            ]
        super().__init__(*mods)


class Resampler(nn.Module):
    def __init__(self, dim, heads, n, depth=2):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n, dim) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(
                dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )

    def forward(self, feats):
        x = self.latents.expand(len(feats), -1, -1)
        for layer in self.layers:
            x = layer(x, feats)
        return x


class GatedCrossAttention(nn.Module):
    """Wraps one language-model block; looks at `self.visual` before running it."""

    def __init__(self, block, dim, heads):
        super().__init__()
        self.block = block
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )
        self.gate_a = nn.Parameter(torch.tensor([0.1]))
        self.gate_f = nn.Parameter(torch.tensor([0.1]))
        self.visual = None

    def forward(self, hidden_states, *args, **kwargs):
        v = self.visual
        y, _ = self.attn(self.norm(hidden_states), v, v, need_weights=False)
        h = hidden_states + self.gate_a.tanh() * y
        h = h + self.gate_f.tanh() * self.ff(h)
        return self.block(h, *args, **kwargs)


class Flamingo(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=cfg["vocab"],
                n_positions=cfg["text"],
                n_embd=cfg["dim"],
                n_layer=cfg["layers"],
                n_head=cfg["heads"],
                use_cache=False,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=1,
                eos_token_id=2,
            )
        )
        self.lm.requires_grad_(False)
        self.gated = []
        for i in range(0, cfg["layers"], cfg["cross_every"]):
            wrapped = GatedCrossAttention(self.lm.transformer.h[i], cfg["dim"], cfg["heads"])
            self.lm.transformer.h[i] = wrapped
            self.gated.append(wrapped)
        self.vision = VisionTower(cfg["dim"])
        self.resampler = Resampler(cfg["dim"], cfg["heads"], cfg["latents"])

    def forward(self, image, ids):
        feats = self.vision(image).flatten(2).transpose(1, 2)
        visual = self.resampler(feats)
        for g in self.gated:
            g.visual = visual
        return self.lm(input_ids=ids).logits


torch.manual_seed(64)
model = Flamingo().to(DEVICE).train()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.01)
loader = DataLoader(
    VQASet(cfg["batch"] * cfg["iters"], 1),
    cfg["batch"],
    collate_fn=collate,
    num_workers=2 if CUDA else 0,
)

for epoch in range(cfg["epochs"]):
    for i, batch in enumerate(loader):
        image, ids, labels = (t.to(DEVICE) for t in batch)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=CUDA):
            logits = model(image, ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"epoch {epoch} it {i} loss {loss.item():.8f}", flush=True)
