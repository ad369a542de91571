"""Gated linear recurrence (diagonal SSM) with a custom autograd.Function for the scan, Lion optimizer by hand."""  # noqa: E501

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, T, D, LAYERS, VOCAB = (2, 12, 16, 2, 64) if TINY else (16, 256, 1024, 8, 4096)
STEPS = 20


class LinearScan(torch.autograd.Function):
    """h_t = a_t * h_{t-1} + x_t, elementwise; keeps a and h for the backward pass."""

    @staticmethod
    def forward(ctx, a, x, h0):
        h = torch.empty_like(x)
        prev = h0
        for t in range(x.size(1)):
            prev = a[:, t] * prev + x[:, t]
            h[:, t] = prev
        ctx.save_for_backward(a, h, h0)
        return h

    @staticmethod
    def backward(ctx, gh):
        a, h, h0 = ctx.saved_tensors
        ga, gx = torch.empty_like(a), torch.empty_like(gh)
        run = torch.zeros_like(h0)
        for t in range(gh.size(1) - 1, -1, -1):
            run = run + gh[:, t]
            gx[:, t] = run
            ga[:, t] = run * (h[:, t - 1] if t > 0 else h0)
            run = run * a[:, t]
        return ga, gx, run


class GatedSSM(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.inp = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.decay = nn.Parameter(torch.linspace(1.0, 5.0, d))
        self.h0 = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        u, f, g = self.inp(self.norm(x)).chunk(3, dim=-1)
        a = torch.sigmoid(f + self.decay)
        h = LinearScan.apply(a, (1 - a) * u, self.h0.expand(x.size(0), -1))
        return x + self.out(h * F.silu(g))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(
            m
            for _ in range(LAYERS)
            for m in (
                GatedSSM(D),
                nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)),
            )
        )
        self.head = nn.Linear(D, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        for i, m in enumerate(self.layers):
            x = m(x) if i % 2 == 0 else x + m(x)
        return self.head(x)


def lion_step(params, moms, lr, b1=0.9, b2=0.99, wd=0.1):
    with torch.no_grad():
        for p, m in zip(params, moms):
            if p.grad is None:
                continue
            p.mul_(1 - lr * wd)
            p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-lr)
            m.mul_(b2).add_(p.grad, alpha=1 - b2)


def main():
    torch.manual_seed(64)
    model = LM().to(device)
    params = list(model.parameters())
    moms = [torch.zeros_like(p) for p in params]
    g = torch.Generator().manual_seed(65)
    for step in range(STEPS):
        ids = torch.randint(0, VOCAB, (B, T + 1), generator=g).to(device)
        logits = model(ids[:, :-1])
        # later positions matter more
        weight = torch.linspace(0.5, 1.5, T, device=device)
        tok = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (tok * weight).mean()
        for p in params:
            p.grad = None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        lion_step(params, moms, lr=1e-4 * min(1.0, (step + 1) / 5))
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
