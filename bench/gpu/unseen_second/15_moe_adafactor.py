"""Decoder with mixture-of-experts MLPs (top-2 routing), Adafactor. Most of the memory is weights and gradients."""  # noqa: E501

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Adafactor

TINY = os.environ.get("TINY") == "1"
cfg = (
    dict(vocab=120, d=32, layers=2, heads=2, experts=4, ffn=48, seq=12, batch=2)
    if TINY
    else dict(vocab=20000, d=1024, layers=6, heads=16, experts=16, ffn=2048, seq=256, batch=6)
)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Expert(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.w1, self.w2, self.w3 = (
            nn.Linear(d, f, bias=False),
            nn.Linear(f, d, bias=False),
            nn.Linear(d, f, bias=False),
        )

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MoE(nn.Module):
    def __init__(self, d, f, n, k=2):
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(Expert(d, f) for _ in range(n))
        self.n, self.k = n, k
        self.aux = None

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.gate(x).softmax(-1)
        w, idx = probs.topk(self.k, dim=-1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tok, slot = torch.where(idx == e)
            if tok.numel() == 0:
                continue
            out = out.index_add(0, tok, expert(x[tok]) * w[tok, slot, None])
        load = F.one_hot(idx[:, 0], self.n).float().mean(0)
        self.aux = self.n * (load * probs.mean(0)).sum()
        return out.reshape(shape)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c["heads"]
        self.n1, self.n2 = nn.RMSNorm(c["d"]), nn.RMSNorm(c["d"])
        self.qkv = nn.Linear(c["d"], 3 * c["d"], bias=False)
        self.o = nn.Linear(c["d"], c["d"], bias=False)
        self.moe = MoE(c["d"], c["ffn"], c["experts"])

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(a)
        return x + self.moe(self.n2(x))


class MoELM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c["vocab"], c["d"])
        self.pos = nn.Parameter(torch.zeros(1, c["seq"], c["d"]))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["d"])
        self.head = nn.Linear(c["d"], c["vocab"], bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[:, : ids.size(1)]
        for l in self.layers:  # noqa: E741
            x = l(x)
        aux = sum(l.moe.aux for l in self.layers) / len(self.layers)  # noqa: E741
        return self.head(self.norm(x)), aux


def main():
    torch.manual_seed(3407)
    model = MoELM(cfg).to(device)
    print("parameters: %.1fM" % (sum(p.numel() for p in model.parameters()) / 1e6))
    opt = Adafactor(
        model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False, warmup_init=False
    )
    gen = torch.Generator().manual_seed(1)
    for step in range(22):
        ids = torch.randint(0, cfg["vocab"], (cfg["batch"], cfg["seq"] + 1), generator=gen).to(
            device
        )
        logits, aux = model(ids[:, :-1])
        ce = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss = ce + 0.01 * aux
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
