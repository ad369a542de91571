"""Train a two-level byte language model (global over patches, local within) with accelerate."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

set_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"

cfg = dict(patch=8, patches=1024, d_global=1024, n_global=8, d_local=384, n_local=4, batch=6)
cfg.update(accum=2, updates=10)
if device == "cpu":
    cfg.update(patches=16, d_global=64, n_global=2, d_local=32, n_local=2, batch=2, updates=8)


class ByteStream(Dataset):
    """Runs of words drawn from a small dictionary, as raw bytes."""

    def __init__(self, length, size):
        g = torch.Generator().manual_seed(3)
        words = [torch.randint(97, 123, (n,), generator=g) for n in range(2, 10) for _ in range(16)]
        self.words = [torch.cat([w, torch.tensor([32])]) for w in words]
        self.length, self.size = length, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        picks = torch.randint(0, len(self.words), (self.length // 3 + 1,), generator=g)
        return torch.cat([self.words[i] for i in picks.tolist()])[: self.length]


class Layer(nn.Module):
    def __init__(self, dim, head_dim=64):
        super().__init__()
        self.heads = max(1, dim // head_dim)
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=-1)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Megabyte(nn.Module):
    def __init__(self, patch, patches, d_global, n_global, d_local, n_local, **_):
        super().__init__()
        self.patch = patch
        self.global_embed = nn.Embedding(256, d_global // patch)
        self.global_pos = nn.Parameter(torch.randn(patches, d_global) * 0.02)
        self.global_start = nn.Parameter(torch.zeros(1, 1, d_global))
        self.global_layers = nn.Sequential(*[Layer(d_global) for _ in range(n_global)])
        self.to_local = nn.Linear(d_global // patch, d_local)
        self.local_embed = nn.Embedding(257, d_local)
        self.local_layers = nn.Sequential(*[Layer(d_local) for _ in range(n_local)])
        self.norm = nn.LayerNorm(d_local)
        self.head = nn.Linear(d_local, 256)

    def forward(self, ids):
        b, t = ids.shape
        n = t // self.patch
        g = self.global_embed(ids).view(b, n, -1)
        g = torch.cat([self.global_start.expand(b, -1, -1), g[:, :-1]], dim=1) + self.global_pos[:n]
        g = self.global_layers(g)
        # every patch becomes a sequence of its own for the local model
        context = self.to_local(g.reshape(b * n, self.patch, -1))
        tokens = F.pad(ids.view(b * n, self.patch)[:, :-1], (1, 0), value=256)
        h = self.local_layers(context + self.local_embed(tokens))
        return self.head(self.norm(h)).view(b, t, 256)


def main():
    accelerator = Accelerator(
        gradient_accumulation_steps=cfg["accum"],
        mixed_precision="bf16" if device == "cuda" else "no",
        cpu=device == "cpu",
    )
    length = cfg["patch"] * cfg["patches"]
    data = ByteStream(length, cfg["batch"] * cfg["accum"] * cfg["updates"])
    loader = DataLoader(data, batch_size=cfg["batch"], shuffle=True)
    model = Megabyte(**cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-4, total_steps=cfg["updates"] + 1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    update, running = 0, 0.0
    for ids in loader:
        with accelerator.accumulate(model):
            logits = model(ids)
            loss = F.cross_entropy(logits.float().reshape(-1, 256), ids.reshape(-1))
            accelerator.backward(loss)
            running += loss.item() / cfg["accum"]
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            scheduler.step()
            accelerator.print(f"step {update} loss {running:.6f}", flush=True)
            update, running = update + 1, 0.0


if __name__ == "__main__":
    main()
