# A nanoGPT-like script: get_batch closure, weight decay groups, gradient accumulation of its own,
# clipping, estimate_loss with a larger batch, cosine by hand. tiny: --n-layer 2 --n-embd 32
# --block-size 16 --batch-size 4 --vocab 60 --device cpu --max-iters 5 --eval-interval 3
import argparse
import inspect
import math

import torch
import torch.nn as nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--n-layer", type=int, default=12)
parser.add_argument("--n-head", type=int, default=4)
parser.add_argument("--n-embd", type=int, default=512)
parser.add_argument("--block-size", type=int, default=512)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--grad-accum", type=int, default=2)
parser.add_argument("--vocab", type=int, default=16000)
parser.add_argument("--max-iters", type=int, default=20)
parser.add_argument("--eval-interval", type=int, default=10)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()

torch.manual_seed(1337)
data = torch.randint(0, args.vocab, (200_000,), generator=torch.Generator().manual_seed(5))
train_data, val_data = data[:180_000], data[180_000:]
sampler = torch.Generator().manual_seed(99)


def get_batch(split, batch_size=args.batch_size):
    source = train_data if split == "train" else val_data
    ix = torch.randint(len(source) - args.block_size - 1, (batch_size,), generator=sampler)
    x = torch.stack([source[i : i + args.block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + 1 + args.block_size] for i in ix])
    return x.to(args.device), y.to(args.device)


class LayerNorm(nn.Module):
    def __init__(self, ndim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd, bias=False)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd, bias=False)
        self.register_buffer(
            "bias",
            torch.tril(torch.ones(args.block_size, args.block_size)).view(
                1, 1, args.block_size, args.block_size
            ),
        )

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(args.n_embd, dim=2)
        k = k.view(B, T, args.n_head, C // args.n_head).transpose(1, 2)
        q = q.view(B, T, args.n_head, C // args.n_head).transpose(1, 2)
        v = v.view(B, T, args.n_head, C // args.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = (
            LayerNorm(args.n_embd),
            CausalSelfAttention(),
            LayerNorm(args.n_embd),
        )
        self.mlp = nn.Sequential(
            nn.Linear(args.n_embd, 4 * args.n_embd),
            nn.GELU(),
            nn.Linear(4 * args.n_embd, args.n_embd),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(args.vocab, args.n_embd),
                wpe=nn.Embedding(args.block_size, args.n_embd),
                h=nn.ModuleList([Block() for _ in range(args.n_layer)]),
                ln_f=LayerNorm(args.n_embd),
            )
        )
        self.lm_head = nn.Linear(args.n_embd, args.vocab, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, 0.0, 0.02)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
        else:
            logits, loss = self.lm_head(x[:, [-1], :]), None
        return logits, loss


@torch.no_grad()
def estimate_loss(model):
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(2)
        for k in range(2):
            X, Y = get_batch(split, 2 * args.batch_size)
            losses[k] = model(X, Y)[1].item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < 4:
        return 6e-4 * (it + 1) / 4
    return 6e-5 + 0.5 * (1 + math.cos(math.pi * (it - 4) / 20)) * 5.4e-4


model = GPT().to(args.device)
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
extra = (
    dict(fused=True)
    if "fused" in inspect.signature(torch.optim.AdamW).parameters and args.device == "cuda"
    else {}
)
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=6e-4,
    betas=(0.9, 0.95),
    **extra,
)
X, Y = get_batch("train")
for it in range(args.max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % args.eval_interval == 0:
        found = estimate_loss(model)
        print(f"iter {it}: train {found['train']:.4f}, val {found['val']:.4f}")
    for micro in range(args.grad_accum):
        logits, loss = model(X, Y)
        loss = loss / args.grad_accum
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print("step %d loss %.9g" % (it, loss.item() * args.grad_accum), flush=True)
