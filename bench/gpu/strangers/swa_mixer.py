# MLP-Mixer with gradient accumulation written by hand and an averaged copy of the weights
# (torch.optim.swa_utils), evaluated at the end.
# tiny: --dim 16 --depth 3 --batch 4 --size 32 --device cpu
import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser()
parser.add_argument("--dim", type=int, default=512)
parser.add_argument("--depth", type=int, default=12)
parser.add_argument("--batch", type=int, default=96)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--device", default="cuda")
opt = parser.parse_args()
torch.manual_seed(4)
tokens = (opt.size // 16) ** 2


class MixerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, opt.dim, 16, 16)
        self.blocks = nn.Sequential(*[MixerBlock(opt.dim) for _ in range(opt.depth)])
        self.norm, self.head = nn.LayerNorm(opt.dim), nn.Linear(opt.dim, 100)

    def forward(self, x):
        x = self.blocks(self.stem(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


model = Mixer().to(opt.device)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
adam = torch.optim.Adam(model.parameters(), 3e-4)
rng = torch.Generator().manual_seed(1)
accum = 2
for step in range(20):
    images = torch.randn(opt.batch, 3, opt.size, opt.size, generator=rng).to(opt.device)
    labels = torch.randint(0, 100, (opt.batch,), generator=rng).to(opt.device)
    loss = nn.functional.cross_entropy(model(images), labels) / accum
    loss.backward()
    if step % accum == accum - 1:
        adam.step()
        adam.zero_grad()
        ema.update_parameters(model)
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
ema.eval()
with torch.no_grad():
    print("averaged %.9g" % nn.functional.cross_entropy(ema(images), labels).item())
