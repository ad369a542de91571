"""Sharpness-aware minimisation: each step climbs to a neighbour first, so the model runs forward
and backward twice on the same batch; a vision transformer of torchvision."""

# tiny: --dim 32 --layers 2 --batch 4 --size 32 --device cpu
import argparse

import torch
import torch.nn.functional as F
from torchvision.models.vision_transformer import VisionTransformer

p = argparse.ArgumentParser()
p.add_argument("--dim", type=int, default=384)
p.add_argument("--layers", type=int, default=12)
p.add_argument("--batch", type=int, default=96)
p.add_argument("--size", type=int, default=224)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(13)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **more):
        super().__init__(params, dict(rho=rho, **more))
        self.base = base(self.param_groups, **more)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        grads = [
            q.grad.norm() for g in self.param_groups for q in g["params"] if q.grad is not None
        ]
        scale = 0.05 / (torch.stack(grads).norm() + 1e-12)
        for g in self.param_groups:
            for q in g["params"]:
                if q.grad is not None:
                    self.state[q]["old"] = q.clone()
                    q.add_(q.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for q in g["params"]:
                if "old" in self.state[q]:
                    q.copy_(self.state[q]["old"])
        self.base.step()
        self.zero_grad()


model = VisionTransformer(
    image_size=a.size,
    patch_size=16,
    num_layers=a.layers,
    num_heads=max(1, a.dim // 64),
    hidden_dim=a.dim,
    mlp_dim=4 * a.dim,
    num_classes=100,
).to(a.device)
opt = SAM(model.parameters(), torch.optim.SGD, lr=0.02, momentum=0.9)
rng = torch.Generator().manual_seed(5)
for step in range(10):
    x = torch.randn(a.batch, 3, a.size, a.size, generator=rng).to(a.device)
    y = torch.randint(0, 100, (a.batch,), generator=rng).to(a.device)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.climb()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
