"""GPT with a hand-written linear + cross-entropy Function (chunked); saves and resumes."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL", "0") == "1" or not torch.cuda.is_available()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, DIM, LAYERS, HEADS = (211, 32, 2, 4) if SMALL else (64000, 768, 12, 12)
BATCH, SEQ, STEPS, SAVE_AT = (2, 24, 10, 5) if SMALL else (12, 768, 12, 6)
CHUNK = 16 if SMALL else 2048


class LinearCrossEntropy(torch.autograd.Function):
    """Never holds all logits: the gradients are made chunk by chunk on the way forward."""

    @staticmethod
    def forward(ctx, hidden, weight, target, z_weight):
        n = (target >= 0).sum().clamp(min=1)
        grad_h = torch.empty_like(hidden)
        grad_w = torch.zeros_like(weight)
        w = weight.to(hidden.dtype)
        total = hidden.new_zeros((), dtype=torch.float32)
        for i in range(0, len(hidden), CHUNK):
            h, t = hidden[i : i + CHUNK], target[i : i + CHUNK]
            logits = (h @ w.t()).float()
            lse = logits.logsumexp(1)
            keep = (t >= 0).float()
            safe = t.clamp(min=0).unsqueeze(1)
            nll = lse - logits.gather(1, safe).squeeze(1)
            total += (keep * (nll + z_weight * lse**2)).sum()
            p = logits.sub_(lse.unsqueeze(1)).exp_()
            p.mul_((1 + 2 * z_weight * lse).unsqueeze(1))
            p.scatter_add_(1, safe, -torch.ones_like(safe, dtype=p.dtype))
            p.mul_((keep / n).unsqueeze(1))
            p = p.to(h.dtype)
            grad_h[i : i + CHUNK] = p @ w
            grad_w += (p.t() @ h).to(grad_w.dtype)
        ctx.save_for_backward(grad_h, grad_w)
        return total / n

    @staticmethod
    def backward(ctx, g):
        grad_h, grad_w = ctx.saved_tensors
        return grad_h * g.to(grad_h.dtype), grad_w * g, None, None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.attn(self.ln1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(DIM)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids, target):
        x = self.wte(ids) + self.wpe.weight[: ids.size(1)]
        for block in self.h:
            x = block(x)
        x = self.ln_f(x).to(torch.bfloat16)
        return LinearCrossEntropy.apply(x.flatten(0, 1), self.wte.weight, target.flatten(), 1e-5)


def make():
    with torch.device(DEVICE):
        model = GPT()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95))
    return model, opt


def batch(step):
    g = torch.Generator().manual_seed(1800 + step)
    a = torch.randint(0, VOCAB, (BATCH, 1), generator=g)
    noise = torch.randint(0, 5, (BATCH, SEQ + 1), generator=g)
    ids = (a + 7 * torch.arange(SEQ + 1) + noise) % VOCAB
    target = ids[:, 1:].clone()
    target[:, : SEQ // 16] = -1  # a prompt that is not scored
    return ids[:, :-1].to(DEVICE), target.to(DEVICE)


def train(model, opt, first, last):
    model.train()
    for step in range(first, last):
        ids, target = batch(step)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(ids, target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"step {step} loss {loss.item():.8f}", flush=True)


def main():
    torch.manual_seed(18)
    model, opt = make()
    train(model, opt, 0, SAVE_AT)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ckpt.pt")
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": SAVE_AT}, path)
        ckpt = torch.load(path, map_location="cpu")
    model.load_state_dict(ckpt["model"])
    opt.load_state_dict(ckpt["opt"])
    train(model, opt, ckpt["step"], STEPS)


if __name__ == "__main__":
    main()
