"""Class-conditional gated PixelCNN with a 256-way softmax per channel, fp32, own RMSprop."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset


class PlainRMSprop(Optimizer):
    """RMSprop with bias correction and Polyak averages of the weights kept in the state."""

    def __init__(self, params, lr=1e-3, decay=0.95, eps=1e-6, polyak=0.9):
        super().__init__(params, dict(lr=lr, decay=decay, eps=eps, polyak=polyak))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["t"], st["sq"], st["avg"] = 0, torch.zeros_like(p), p.detach().clone()
                st["t"] += 1
                st["sq"].mul_(group["decay"]).addcmul_(p.grad, p.grad, value=1 - group["decay"])
                denom = (st["sq"] / (1 - group["decay"] ** st["t"])).sqrt_().add_(group["eps"])
                p.addcdiv_(p.grad, denom, value=-group["lr"])
                st["avg"].lerp_(p, 1 - group["polyak"])

    @torch.no_grad()
    def swap(self):
        for group in self.param_groups:
            for p in group["params"]:
                avg = self.state[p].get("avg")
                if avg is not None:
                    keep = p.clone()
                    p.copy_(avg)
                    avg.copy_(keep)


def gate(x):
    a, b = x.chunk(2, 1)
    return torch.tanh(a) * torch.sigmoid(b)


class GatedLayer(nn.Module):
    def __init__(self, dim, kernel, classes, first=False):
        super().__init__()
        self.k, self.first = kernel, first
        half = kernel // 2
        self.vert = nn.Conv2d(dim, 2 * dim, (half + 1, kernel), padding=(half + 1, half))
        self.horiz = nn.Conv2d(dim, 2 * dim, (1, half if first else half + 1))
        self.pad = half
        self.v_to_h = nn.Conv2d(2 * dim, 2 * dim, 1)
        self.mix = nn.Conv2d(dim, dim, 1)
        self.skip = nn.Conv2d(dim, dim, 1)
        self.cond = nn.Embedding(classes, 2 * dim)

    def forward(self, v, h, label):
        rows, cols = v.shape[-2:]
        c = self.cond(label)[:, :, None, None]
        v_all = self.vert(v)
        # shifted down by one: row r sees rows < r for the horizontal stack, <= r for the next
        above, own = v_all[:, :, :rows], v_all[:, :, 1 : rows + 1]
        h_in = F.pad(h, (self.pad, 0, 0, 0))
        h_out = self.horiz(h_in)[..., :cols] + self.v_to_h(above)
        h_out = gate(h_out + c)
        res = self.mix(h_out)
        return gate(own + c), res if self.first else h + res, self.skip(h_out)


class PixelCNN(nn.Module):
    def __init__(self, dim, layers, classes, levels=256):
        super().__init__()
        self.levels = levels
        self.inp = nn.Conv2d(3, dim, 1)
        self.layers = nn.ModuleList(
            GatedLayer(dim, 7 if i == 0 else 3, classes, first=i == 0) for i in range(layers)
        )
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv2d(dim, 2 * dim, 1), nn.ReLU(), nn.Conv2d(2 * dim, 3 * levels, 1)
        )

    def forward(self, x, label):
        v = h = self.inp(x.float() / (self.levels - 1) * 2 - 1)
        total = 0
        for layer in self.layers:
            v, h, s = layer(v, h, label)
            total = total + s
        return self.head(total).unflatten(1, (self.levels, 3))


def striped_images(n, res, classes, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (n,), generator=g)
    axis = torch.arange(res).float()
    angle = label.float()[:, None, None] * math.pi / classes
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    wave = torch.sin(
        0.6 * (angle.cos() * axis[None, None] + angle.sin() * axis[None, :, None]) + phase
    )
    tint = torch.rand(n, 3, 1, 1, generator=g)
    image = (wave[:, None] * 0.5 + 0.5) * tint * 255
    return TensorDataset(image.long().clamp(0, 255), label)


def main():
    torch.manual_seed(404)
    on_card = torch.cuda.is_available()
    device = torch.device("cuda" if on_card else "cpu")
    res, dim, layers, classes, batch, epochs = 32, 128, 12, 10, 64, 2
    per_epoch = 6
    if not on_card:
        res, dim, layers, batch, per_epoch = 12, 16, 3, 4, 4
    train = striped_images(batch * per_epoch, res, classes, seed=0)
    valid = striped_images(batch, res, classes, seed=1)
    loader = DataLoader(train, batch, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = PixelCNN(dim, layers, classes).to(device)
    opt = PlainRMSprop(model.parameters(), lr=5e-4)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.95)
    to_bits = 1 / math.log(2)
    step = 0
    for epoch in range(epochs):
        model.train()
        for image, label in loader:
            image, label = image.to(device), label.to(device)
            opt.zero_grad()
            loss = F.cross_entropy(model(image, label), image)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            sched.step()
            print(f"step {step} loss {loss.item():.6f} grad {norm.item():.3f}", flush=True)
            step += 1
        model.eval()
        opt.swap()
        with torch.no_grad():
            image, label = (t.to(device) for t in valid.tensors)
            nats = F.cross_entropy(model(image, label), image)
        opt.swap()
        print(f"epoch {epoch} bits/dim {nats.item() * to_bits:.4f}")


if __name__ == "__main__":
    main()
