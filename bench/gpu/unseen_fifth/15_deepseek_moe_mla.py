"""Small DeepSeek-V3-like LM: latent attention, shared + routed experts, bias-balanced routing."""

import os

import torch
import torch.nn.functional as F
from torch import nn

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
device = "cuda" if torch.cuda.is_available() else "cpu"

vocab, dim, n_layers, n_heads = (128, 32, 2, 4) if SMALL else (32000, 1024, 6, 16)
q_rank, kv_rank, rope_dim, head_dim = (16, 16, 4, 8) if SMALL else (512, 256, 32, 64)
n_experts, top_k, expert_dim = (4, 2, 32) if SMALL else (16, 2, 896)
batch, seq, steps = (2, 16, 8) if SMALL else (4, 576, 12)
bias_speed = 0.01


def rope(x):
    t = torch.arange(x.size(-2), device=x.device).float()
    f = 10000 ** (-torch.arange(0, x.size(-1), 2, device=x.device) / x.size(-1))
    c, s = torch.cos(t[:, None] * f), torch.sin(t[:, None] * f)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * c - b * s, a * s + b * c], -1).to(x.dtype)


class MLA(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_down, self.q_norm = nn.Linear(dim, q_rank, bias=False), nn.RMSNorm(q_rank)
        self.q_up = nn.Linear(q_rank, n_heads * (head_dim + rope_dim), bias=False)
        self.kv_down = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = nn.RMSNorm(kv_rank)
        self.kv_up = nn.Linear(kv_rank, n_heads * 2 * head_dim, bias=False)
        self.o = nn.Linear(n_heads * head_dim, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_up(self.q_norm(self.q_down(x))).view(b, t, n_heads, -1).transpose(1, 2)
        q_c, q_r = q.split([head_dim, rope_dim], -1)
        latent, k_r = self.kv_down(x).split([kv_rank, rope_dim], -1)
        kv = self.kv_up(self.kv_norm(latent)).view(b, t, n_heads, -1).transpose(1, 2)
        k_c, v = kv.chunk(2, -1)
        k_r = rope(k_r.unsqueeze(1)).expand(-1, n_heads, -1, -1)
        q, k = torch.cat([q_c, rope(q_r)], -1), torch.cat([k_c, k_r], -1)
        v = F.pad(v, (0, rope_dim))  # one head size for all three
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.o(y[..., :head_dim].transpose(1, 2).reshape(b, t, -1))


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(dim, expert_dim, bias=False) for _ in range(2))
        self.w2 = nn.Linear(expert_dim, dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.register_buffer("bias", torch.zeros(n_experts))
        self.experts = nn.ModuleList(Expert() for _ in range(n_experts))
        self.shared = Expert()

    def forward(self, x):
        flat = x.reshape(-1, dim)
        with torch.autocast(device, enabled=False):
            score = F.linear(flat.float(), self.gate.weight).sigmoid()
        chosen = (score + self.bias).topk(top_k, -1).indices
        weight = score.gather(1, chosen)
        weight = weight / weight.sum(-1, keepdim=True)
        # tokens in the order of their experts, and back again by the inverse permutation
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=n_experts)
        rows = flat.repeat_interleave(top_k, 0)[order]
        out = torch.cat([e(r) for e, r in zip(self.experts, rows.split(counts.tolist()))])
        out = out[order.argsort()].view(-1, top_k, dim)
        if self.training:
            load = counts.float()
            self.bias += bias_speed * torch.sign(load.mean() - load)
        return ((out * weight.unsqueeze(-1)).sum(1) + self.shared(flat)).view_as(x), score


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn, self.moe = nn.RMSNorm(dim), nn.RMSNorm(dim), MLA(), MoE()

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        y, score = self.moe(self.n2(x))
        return x + y, score


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer() for _ in range(n_layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x, spread = self.embed(ids), 0.0
        for layer in self.layers:
            x, score = layer(x)
            p = score / score.sum(-1, keepdim=True)
            spread = spread + (p.view(*ids.shape, -1).mean(1) ** 2).sum(-1).mean() * n_experts
        return self.head(self.norm(x)), spread / n_layers


torch.manual_seed(15)
with torch.device(device):
    model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1)
g = torch.Generator().manual_seed(150)
model.train()
for step in range(steps):
    start = torch.randint(0, vocab, (batch, 1), generator=g)
    jump = torch.randint(1, 7, (batch, seq), generator=g)
    ids = ((start + jump.cumsum(1)) % vocab).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        logits, spread = model(ids)
    ce = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
    loss = ce + 1e-3 * spread
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    print(f"step {step} loss {loss.item():.8f} ce {ce.item():.6f}", flush=True)
