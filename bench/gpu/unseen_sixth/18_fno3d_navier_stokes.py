"""
Fourier Neural Operator (3D: two space + one time) on vorticity fields.
Input: first T_in frames repeated along time + coordinates; output: the next T frames.
"""

import operator
from functools import reduce
from timeit import default_timer

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
np.random.seed(0)
CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")

################################################################
# configs
################################################################
modes = 12 if CUDA else 3
width = 32 if CUDA else 6
S = 64 if CUDA else 12
T_in = 10 if CUDA else 4
T = 32 if CUDA else 8
batch_size = 8 if CUDA else 2
ntrain = 40 if CUDA else 4
ntest = 8 if CUDA else 2
epochs = 2
learning_rate = 1e-3
scheduler_step, scheduler_gamma = 1, 0.5


class LpLoss:
    def __call__(self, x, y):
        n = x.size(0)
        diff = torch.norm(x.reshape(n, -1) - y.reshape(n, -1), 2, 1)
        return torch.sum(diff / torch.norm(y.reshape(n, -1), 2, 1))


class UnitGaussianNormalizer:
    def __init__(self, x, eps=1e-5):
        self.mean, self.std, self.eps = torch.mean(x, 0), torch.std(x, 0), eps

    def encode(self, x):
        return (x - self.mean) / (self.std + self.eps)

    def decode(self, x):
        return x * (self.std + self.eps) + self.mean

    def to(self, dev):
        self.mean, self.std = self.mean.to(dev), self.std.to(dev)
        return self


################################################################
# 3d fourier layers
################################################################
class SpectralConv3d(nn.Module):
    def __init__(self, cin, cout, m1, m2, m3):
        super().__init__()
        self.cout, self.m1, self.m2, self.m3 = cout, m1, m2, m3
        scale = 1 / (cin * cout)
        self.weights = nn.ParameterList(
            [
                nn.Parameter(scale * torch.rand(cin, cout, m1, m2, m3, dtype=torch.cfloat))
                for _ in range(4)
            ]
        )

    def forward(self, x):
        x_ft = torch.fft.rfftn(x, dim=[-3, -2, -1])
        out_ft = torch.zeros(
            x.size(0), self.cout, *x_ft.shape[-3:], dtype=torch.cfloat, device=x.device
        )
        a, b, c = self.m1, self.m2, self.m3
        corners = [
            (slice(None, a), slice(None, b)),
            (slice(-a, None), slice(None, b)),
            (slice(None, a), slice(-b, None)),
            (slice(-a, None), slice(-b, None)),
        ]
        for (s1, s2), w in zip(corners, self.weights):
            out_ft[:, :, s1, s2, :c] = torch.einsum("bixyz,ioxyz->boxyz", x_ft[:, :, s1, s2, :c], w)
        return torch.fft.irfftn(out_ft, s=x.shape[-3:], dim=[-3, -2, -1])


class FNO3d(nn.Module):
    def __init__(self, modes, width):
        super().__init__()
        self.padding = 6
        self.p = nn.Linear(T_in + 3, width)
        m3 = min(modes, (T + self.padding) // 2)
        self.convs = nn.ModuleList(
            [SpectralConv3d(width, width, modes, modes, m3) for _ in range(4)]
        )
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.Conv3d(width, width, 1), nn.GELU(), nn.Conv3d(width, width, 1))
                for _ in range(4)
            ]
        )
        self.ws = nn.ModuleList([nn.Conv3d(width, width, 1) for _ in range(4)])
        self.q = nn.Sequential(
            nn.Conv3d(width, width * 4, 1), nn.GELU(), nn.Conv3d(width * 4, 1, 1)
        )

    def forward(self, x):
        x = self.p(torch.cat((x, self.get_grid(x.shape, x.device)), dim=-1))
        x = F.pad(x.permute(0, 4, 1, 2, 3), [0, self.padding])
        for k in range(4):
            x = self.mlps[k](self.convs[k](x)) + self.ws[k](x)
            if k < 3:
                x = F.gelu(x)
        x = x[..., : -self.padding]
        return self.q(x).squeeze(1)

    def get_grid(self, shape, dev):
        b, sx, sy, st = shape[:4]
        g = torch.meshgrid(*[torch.linspace(0, 1, s) for s in (sx, sy, st)], indexing="ij")
        return torch.stack(g, -1)[None].repeat(b, 1, 1, 1, 1).to(dev)


################################################################
# data: superposed travelling, decaying waves
################################################################
def fields(n, seed):
    rng = np.random.RandomState(seed)
    x = np.linspace(0, 2 * np.pi, S, endpoint=False)
    t = np.linspace(0, 1, T_in + T)
    out = np.zeros((n, S, S, T_in + T), dtype=np.float32)
    for i in range(n):
        for _ in range(3):
            kx, ky, ph, sp, am = (
                rng.randint(1, 5),
                rng.randint(1, 5),
                rng.rand() * 6,
                rng.randn() * 4,
                rng.rand() + 0.3,
            )
            arg = kx * x[:, None, None] + ky * x[None, :, None] + ph + sp * t[None, None]
            out[i] += am * np.sin(arg) * np.exp(-0.1 * (kx**2 + ky**2) * t)
    out = torch.from_numpy(out)
    return out[..., :T_in], out[..., T_in:]


train_a, train_u = fields(ntrain, 1)
test_a, test_u = fields(ntest, 2)
a_norm, y_norm = UnitGaussianNormalizer(train_a), UnitGaussianNormalizer(train_u)
train_a, test_a = a_norm.encode(train_a), a_norm.encode(test_a)
train_u = y_norm.encode(train_u)
rep = lambda a: a.reshape(a.size(0), S, S, 1, T_in).repeat(1, 1, 1, T, 1)
train_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(rep(train_a), train_u), batch_size=batch_size, shuffle=True
)
test_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(rep(test_a), test_u), batch_size=batch_size
)

model = FNO3d(modes, width).to(device)
print("params", sum(reduce(operator.mul, list(p.size())) for p in model.parameters()))
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(
    optimizer, step_size=scheduler_step, gamma=scheduler_gamma
)
myloss = LpLoss()
y_norm.to(device)

for ep in range(epochs):
    model.train()
    t1 = default_timer()
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = model(x).view(x.size(0), S, S, T)
        mse = F.mse_loss(out, y)
        l2 = myloss(y_norm.decode(out), y_norm.decode(y)) / x.size(0)
        l2.backward()
        optimizer.step()
        print(f"ep {ep} l2 loss {l2.item():.8f} mse {mse.item():.6f}", flush=True)
    scheduler.step()
    model.eval()
    test_l2 = 0.0
    with torch.no_grad():
        for x, y in test_loader:
            out = y_norm.decode(model(x.to(device)).view(x.size(0), S, S, T))
            test_l2 += myloss(out, y.to(device)).item()
    print(ep, "time", round(default_timer() - t1, 2), "test rel", test_l2 / ntest, flush=True)
