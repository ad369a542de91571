"""Tabular classification with TabNet: sparsemax attention (own autograd) and ghost batch norm."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(404)
device = "cuda" if torch.cuda.is_available() else "cpu"

FEATURES, CLASSES, BATCH, GHOST, WIDTH, DECISIONS, STEPS = 512, 7, 16384, 512, 128, 6, 12
if device == "cpu":
    FEATURES, CLASSES, BATCH, GHOST, WIDTH, DECISIONS, STEPS = 24, 3, 128, 32, 8, 3, 10


class SparsemaxFunction(torch.autograd.Function):
    """Projection onto the simplex along the last dimension (Martins and Astudillo, 2016)."""

    @staticmethod
    def forward(ctx, z):
        z = z - z.max(dim=-1, keepdim=True).values
        ordered = z.sort(dim=-1, descending=True).values
        k = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        total = ordered.cumsum(-1)
        support = (1 + k * ordered > total).sum(-1, keepdim=True)
        tau = (total.gather(-1, support - 1) - 1) / support
        out = (z - tau).clamp(min=0)
        ctx.save_for_backward(out, support)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, support = ctx.saved_tensors
        nonzero = out > 0
        mean = (grad * nonzero).sum(-1, keepdim=True) / support
        return torch.where(nonzero, grad - mean, torch.zeros_like(grad))


def sparsemax(z):
    return SparsemaxFunction.apply(z)


class GhostBatchNorm(nn.Module):
    def __init__(self, dim, size=GHOST, momentum=0.02):
        super().__init__()
        self.size = size
        self.bn = nn.BatchNorm1d(dim, momentum=momentum)

    def forward(self, x):
        if not self.training:
            return self.bn(x)
        return torch.cat([self.bn(part) for part in x.split(self.size)], dim=0)


class GLUBlock(nn.Module):
    def __init__(self, fc):
        super().__init__()
        self.fc = fc
        self.norm = GhostBatchNorm(fc.out_features)

    def forward(self, x):
        return F.glu(self.norm(self.fc(x)), dim=-1)


class FeatureTransformer(nn.Module):
    def __init__(self, shared):
        super().__init__()
        own = [nn.Linear(2 * WIDTH, 4 * WIDTH, bias=False) for _ in range(2)]
        self.blocks = nn.ModuleList(GLUBlock(fc) for fc in [*shared, *own])

    def forward(self, x):
        x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = (x + block(x)) * 0.5**0.5
        return x.split(WIDTH, dim=-1)


class TabNet(nn.Module):
    def __init__(self, gamma=1.3):
        super().__init__()
        self.gamma = gamma
        shared = [
            nn.Linear(FEATURES, 4 * WIDTH, bias=False),
            nn.Linear(2 * WIDTH, 4 * WIDTH, bias=False),
        ]
        self.input_norm = nn.BatchNorm1d(FEATURES)
        self.transformers = nn.ModuleList(FeatureTransformer(shared) for _ in range(DECISIONS + 1))
        self.attention = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, FEATURES, bias=False), GhostBatchNorm(FEATURES))
            for _ in range(DECISIONS)
        )
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x):
        x = self.input_norm(x)
        prior = torch.ones_like(x)
        _, a = self.transformers[0](x)
        total, entropy = 0, 0
        for attend, transform in zip(self.attention, self.transformers[1:], strict=True):
            mask = sparsemax(attend(a) * prior)
            entropy = entropy - (mask * torch.log(mask + 1e-10)).sum(-1).mean() / DECISIONS
            prior = prior * (self.gamma - mask)
            d, a = transform(mask * x)
            total = total + F.relu(d)
        return self.head(total), entropy


rule = torch.randn(FEATURES // 8, CLASSES, device=device)


def make_batch():
    x = torch.randn(BATCH, FEATURES, device=device)
    x[:, 1::4] = x[:, 1::4].exp()  # some skewed columns
    useful = x[:, : FEATURES // 8]
    noise = 0.5 * torch.randn(BATCH, CLASSES, device=device)
    return x, (torch.tanh(useful) @ rule + noise).argmax(-1)


model = TabNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
for step in range(STEPS):
    model.train()
    x, y = make_batch()
    logits, entropy = model(x)
    loss = F.cross_entropy(logits, y) + 1e-3 * entropy
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    if step % 5 == 4:
        model.eval()
        with torch.no_grad():
            x, y = make_batch()
            accuracy = (model(x)[0].argmax(-1) == y).float().mean().item()
        print(f"  accuracy {accuracy:.4f}")
