"""Image-text pre-training (contrastive + matching with hard negatives) on Lightning Fabric."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything

CUDA = torch.cuda.is_available()
DIM, HEADS = (512, 8) if CUDA else (32, 2)
SIDE, PATCH = (128, 8) if CUDA else (16, 8)
WORDS, VOCAB = (40, 8000) if CUDA else (8, 50)
V_LAYERS, T_LAYERS, X_LAYERS = (6, 4, 4) if CUDA else (1, 1, 1)
BATCH = 64 if CUDA else 4
STEPS = 12 if CUDA else 4


def layer(kind):
    return kind(
        DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class ALBEF(nn.Module):
    def __init__(self):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        self.patch = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.v_pos = nn.Parameter(0.02 * torch.randn(1, n + 1, DIM))
        self.v_cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.vision = nn.ModuleList(layer(nn.TransformerEncoderLayer) for _ in range(V_LAYERS))
        self.word = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.t_pos = nn.Parameter(0.02 * torch.randn(1, WORDS, DIM))
        self.text = nn.ModuleList(layer(nn.TransformerEncoderLayer) for _ in range(T_LAYERS))
        self.fusion = nn.ModuleList(layer(nn.TransformerDecoderLayer) for _ in range(X_LAYERS))
        self.v_proj, self.t_proj = nn.Linear(DIM, 256), nn.Linear(DIM, 256)
        self.match = nn.Linear(DIM, 2)
        self.temp = nn.Parameter(torch.tensor(0.07))

    def forward(self, image, ids):
        v = self.patch(image).flatten(2).transpose(1, 2)
        v = torch.cat([self.v_cls.expand(len(v), -1, -1), v], 1) + self.v_pos
        for block in self.vision:
            v = block(v)
        pad = ids == 0
        t = self.word(ids) + self.t_pos[:, : ids.shape[1]]
        for block in self.text:
            t = block(t, src_key_padding_mask=pad)
        zi = F.normalize(self.v_proj(v[:, 0]).float(), dim=-1)
        zt = F.normalize(self.t_proj(t[:, 0]).float(), dim=-1)
        sim = zi @ zt.T / self.temp
        label = torch.arange(len(sim), device=sim.device)
        itc = (F.cross_entropy(sim, label) + F.cross_entropy(sim.T, label)) / 2

        with torch.no_grad():  # the most similar wrong partner
            eye = torch.eye(len(sim), dtype=torch.bool, device=sim.device)
            hard = sim.masked_fill(eye, float("-inf"))
            neg_t, neg_i = hard.argmax(1), hard.argmax(0)
        vs = torch.cat([v, v, v[neg_i]])
        ts = torch.cat([t, t[neg_t], t])
        pads = torch.cat([pad, pad[neg_t], pad])
        x = ts
        for block in self.fusion:
            x = block(x, vs, tgt_key_padding_mask=pads)
        target = torch.cat([torch.ones_like(label), torch.zeros_like(label.repeat(2))])
        itm = F.cross_entropy(self.match(x[:, 0]).float(), target)
        return itc, itm


def batches(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        topic = torch.randint(0, 3, (BATCH, 3), generator=g)
        image = topic[:, :, None, None] + torch.randn(BATCH, 3, SIDE, SIDE, generator=g)
        ids = torch.randint(4, VOCAB, (BATCH, WORDS), generator=g)
        ids[:, 1:4] = topic + 1
        length = torch.randint(WORDS // 2, WORDS + 1, (BATCH, 1), generator=g)
        longest = int(length.max())
        yield image, (ids * (torch.arange(WORDS)[None] < length))[:, :longest]


def main():
    fabric = Fabric(
        accelerator="cuda" if CUDA else "cpu",
        devices=1,
        precision="bf16-mixed" if CUDA else "32-true",
    )
    fabric.launch()
    seed_everything(1515)
    model = ALBEF()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.02)
    model, optimizer = fabric.setup(model, optimizer)
    for step, (image, ids) in enumerate(batches(STEPS, 15)):
        image, ids = fabric.to_device((image, ids))
        itc, itm = model(image, ids)
        loss = itc + itm
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        with torch.no_grad():
            model.temp.clamp_(0.01, 0.5)
        fabric.print(f"step {step} loss {loss.item():.6f} itm {itm.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
