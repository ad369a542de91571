# Self-distillation over several crops of different sizes: a teacher that follows the student, a
# running centre, the last layer frozen in the first steps.
# tiny: --dim 16 --depth 2 --batch 3 --big 32 --small 16 --out 20 --device cpu
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--dim", type=int, default=384)
p.add_argument("--depth", type=int, default=10)
p.add_argument("--batch", type=int, default=40)
p.add_argument("--big", type=int, default=224)
p.add_argument("--small", type=int, default=96)
p.add_argument("--out", type=int, default=4096)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(2)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, 6 if d % 6 == 0 else 4, -1).unbind(2)
        h = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.o(h.transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.n2(x))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        d = a.dim
        self.patch = nn.Conv2d(3, d, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, d, a.big // 16, a.big // 16) * 0.02)
        self.blocks = nn.ModuleList(Block(d) for _ in range(a.depth))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        x = self.patch(x)
        n = x.size(-1)
        x = (x + self.pos[:, :, :n, :n]).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for b in self.blocks:
            x = b(x)
        return self.norm(x)[:, 0]


class MultiCrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Vit()
        self.head = nn.Sequential(nn.Linear(a.dim, 512), nn.GELU(), nn.Linear(512, 128))
        self.last = nn.Linear(128, a.out, bias=False)

    def forward(self, crops):
        done, begin = [], 0
        while begin < len(crops):
            end = begin
            while end < len(crops) and crops[end].shape[-1] == crops[begin].shape[-1]:
                end += 1
            done.append(self.backbone(torch.cat(crops[begin:end])))
            begin = end
        return self.last(F.normalize(self.head(torch.cat(done)), dim=-1))


student = MultiCrop().to(a.device)
teacher = copy.deepcopy(student)
for q in teacher.parameters():
    q.requires_grad = False
centre = torch.zeros(1, a.out, device=a.device)
opt = torch.optim.AdamW(student.parameters(), 5e-5)
g = torch.Generator().manual_seed(1)
for step in range(12):
    crops = [torch.randn(a.batch, 3, a.big, a.big, generator=g).to(a.device) for _ in range(2)]
    crops += [torch.randn(a.batch, 3, a.small, a.small, generator=g).to(a.device) for _ in range(4)]
    with torch.no_grad():
        t_out = teacher(crops[:2])
        target = ((t_out - centre) / 0.04).softmax(-1).chunk(2)
    s_out = (student(crops) / 0.1).log_softmax(-1).chunk(6)
    terms = [
        -(t * s).sum(-1).mean() for i, t in enumerate(target) for j, s in enumerate(s_out) if i != j
    ]
    loss = sum(terms) / len(terms)
    opt.zero_grad()
    loss.backward()
    if step < 2:
        student.last.weight.grad = None
    opt.step()
    with torch.no_grad():
        for q, k in zip(student.parameters(), teacher.parameters()):
            k.mul_(0.99).add_(q, alpha=0.01)
        centre = centre * 0.9 + t_out.mean(0, keepdim=True) * 0.1
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
