import os

import torch
from torch import nn
from torch.nn import functional as F

# MoE language model: top-2 routing, load-balancing loss and router z-loss over the layers.

SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
DIM, HEADS, LAYERS, EXPERTS, VOCAB = (32, 2, 2, 4, 97) if SMALL else (640, 10, 6, 8, 16384)
B, T = (2, 16) if SMALL else (12, 512)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, DIM, 2 * DIM) * 0.02)
        self.w3 = nn.Parameter(torch.randn(EXPERTS, DIM, 2 * DIM) * 0.02)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, 2 * DIM, DIM) * 0.02)

    def forward(self, x):
        flat = x.reshape(-1, DIM)
        logits = self.gate(flat)
        probs = logits.softmax(-1)
        top, chosen = probs.topk(2, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for e in range(EXPERTS):
            token, slot = (chosen == e).nonzero(as_tuple=True)
            if token.numel() == 0:
                continue
            h = flat[token]
            h = (F.silu(h @ self.w1[e]) * (h @ self.w3[e])) @ self.w2[e]
            out = out.index_add(0, token, h * top[token, slot].unsqueeze(-1))
        share = F.one_hot(chosen, EXPERTS).float().sum(1).mean(0)
        balance = EXPERTS * (share * probs.mean(0)).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        return out.view_as(x), balance, z


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.moe = Experts()

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, dim=-1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, DIM))
        y, balance, z = self.moe(self.n2(x))
        return x + y, balance, z


class MoELM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(T, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        balance = z = 0.0
        for layer in self.layers:
            x, b, zz = layer(x)
            balance, z = balance + b, z + zz
        return self.head(self.norm(x)), balance / LAYERS, z / LAYERS


def main():
    torch.manual_seed(404)
    model = MoELM().to(device)
    print("params: %.1fM" % (sum(p.numel() for p in model.parameters()) / 1e6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95))
    data = torch.randint(0, VOCAB, (16, B, T + 1))
    for step, ids in enumerate(data):
        ids = ids.to(device)
        logits, balance, z = model(ids[:, :-1])
        ce = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss = ce + 0.01 * balance + 0.001 * z
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} ce {ce.item():.6f} balance {balance.item():.6f} loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
