# Distillation: a frozen teacher under no_grad, a student, soft targets (KL) plus hard cross
# entropy, SGD with nesterov, EMA of the student, evaluation on EMA. tiny: --dim 32 --depth 2
# --batch 6 --tokens 12 --device cpu --steps 4
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=768)
ap.add_argument("--depth", type=int, default=8)
ap.add_argument("--batch", type=int, default=64)
ap.add_argument("--tokens", type=int, default=384)
ap.add_argument("--steps", type=int, default=20)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(0)
dev = torch.device(a.device)


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.emb = nn.Embedding(500, a.dim)
        self.pos = nn.Parameter(torch.randn(1, a.tokens, a.dim) * 0.02)
        self.cls = nn.Parameter(torch.zeros(1, 1, a.dim))
        layer = lambda: nn.TransformerEncoderLayer(
            a.dim, 4, 2 * a.dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.ModuleList(layer() for _ in range(depth))
        self.out = nn.Linear(a.dim, 20)

    def forward(self, x):
        x = self.emb(x) + self.pos
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], 1)
        feats = []
        for b in self.blocks:
            x = b(x)
            feats.append(x[:, 0])
        return {"logits": self.out(x[:, 0]), "features": feats}


teacher, student = Net(a.depth).to(dev).eval(), Net(max(2, a.depth // 2)).to(dev)
for q in teacher.parameters():
    q.requires_grad_(False)
ema = copy.deepcopy(student)
optim = torch.optim.SGD(
    student.parameters(), lr=0.002, momentum=0.9, nesterov=True, weight_decay=1e-4
)
sched = torch.optim.lr_scheduler.MultiStepLR(optim, [8, 15], 0.3)
T, alpha = 4.0, 0.7
rng = torch.Generator().manual_seed(4)
for step in range(a.steps):
    x = torch.randint(0, 500, (a.batch, a.tokens), generator=rng).to(dev)
    y = x.float().mean(1).long() % 20
    with torch.no_grad():
        t = teacher(x)
    s = student(x)
    kd = (
        F.kl_div(
            F.log_softmax(s["logits"] / T, 1), F.softmax(t["logits"] / T, 1), reduction="batchmean"
        )
        * T
        * T
    )
    hint = sum(F.mse_loss(u, v) for u, v in zip(s["features"], t["features"]))
    loss = (
        alpha * kd
        + (1 - alpha) * F.cross_entropy(s["logits"], y, label_smoothing=0.1)
        + 0.01 * hint
    )
    optim.zero_grad(set_to_none=False)
    loss.backward()
    optim.step()
    sched.step()
    with torch.no_grad():
        for e, q in zip(ema.parameters(), student.parameters()):
            e.lerp_(q, 0.05)
    print("step %d loss %.9g lr %.4g" % (step, loss.item(), sched.get_last_lr()[0]), flush=True)
ema.eval()
with torch.no_grad():
    print("ema accuracy %.3f" % (ema(x)["logits"].argmax(1) == y).float().mean().item())
