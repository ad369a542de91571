"""Tabular regression with layers of differentiable oblivious trees and a custom entmax."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(73)

batch_size = 512 if large else 32
n_features = 40 if large else 10
trees = 768 if large else 16
depth = 8 if large else 3
n_layers = 3 if large else 2
tree_dim = 3


class Entmax15(torch.autograd.Function):
    """Exact 1.5-entmax by sorting (Peters, Niculae and Martins, 2019) over the last dimension."""

    @staticmethod
    def forward(ctx, x):
        x = (x - x.amax(-1, keepdim=True)) / 2
        top = x.sort(dim=-1, descending=True).values
        rho = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
        mean = top.cumsum(-1) / rho
        mean_sq = top.square().cumsum(-1) / rho
        delta = (1 - rho * (mean_sq - mean.square())) / rho
        tau = mean - delta.clamp(min=0).sqrt()
        support = (tau <= top).sum(-1, keepdim=True)
        y = (x - tau.gather(-1, support - 1)).clamp(min=0).square()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        root = y.sqrt()
        inner = grad * root
        return inner - inner.sum(-1, keepdim=True) / root.sum(-1, keepdim=True) * root


def entmoid15(x):
    return Entmax15.apply(torch.stack([x, torch.zeros_like(x)], dim=-1))


class ObliviousTrees(nn.Module):
    def __init__(self, cin):
        super().__init__()
        self.choose = nn.Parameter(torch.rand(trees, depth, cin))
        self.threshold = nn.Parameter(torch.zeros(trees, depth))
        self.log_temp = nn.Parameter(torch.zeros(trees, depth))
        self.response = nn.Parameter(torch.randn(trees, tree_dim, 2**depth) * 0.5)
        self.ready = False

    @torch.no_grad()
    def start(self, value):
        self.threshold.copy_(value.quantile(0.5, dim=0))
        self.log_temp.copy_((value - self.threshold).abs().mean(0).clamp(min=1e-3).log())
        self.ready = True

    def forward(self, x):
        value = torch.einsum("bf,tdf->btd", x, Entmax15.apply(self.choose))
        if not self.ready:
            self.start(value.detach())
        sides = entmoid15((value - self.threshold) * torch.exp(-self.log_temp))
        leaves = sides[:, :, 0]
        for d in range(1, depth):
            leaves = (leaves.unsqueeze(-1) * sides[:, :, d].unsqueeze(-2)).flatten(2)
        mixed = torch.einsum("btl,tcl->btc", leaves, self.response)
        usage = leaves.mean(0)
        entropy = -(usage * torch.log(usage + 1e-9)).sum(-1).mean()
        spread = (leaves * leaves.clamp(min=1e-9).log()).sum(-1).mean()
        return mixed, entropy + spread


class NODE(nn.Module):
    def __init__(self):
        super().__init__()
        grow = trees * tree_dim
        self.layers = nn.ModuleList(ObliviousTrees(n_features + i * grow) for i in range(n_layers))

    def forward(self, x):
        answer, bonus = 0.0, 0.0
        for layer in self.layers:
            y, information = layer(F.dropout(x, 0.05, self.training))
            answer = answer + y[..., 0].mean(1)
            bonus = bonus + information
            x = torch.cat([x, y.flatten(1)], dim=1)
        return answer, bonus


def table(n, g):
    x = torch.randn(n, n_features, generator=g)
    y = (x[:, 0] > 0.3).float() * x[:, 1] + torch.sin(2 * x[:, 2]) * (x[:, 3] < 0).float()
    y = y + 0.5 * x[:, 4].abs() + 0.1 * torch.randn(n, generator=g)
    return x.to(device), ((y - y.mean()) / y.std()).to(device)


g = torch.Generator().manual_seed(16)
x_train, y_train = table(batch_size * 12, g)
x_test, y_test = table(batch_size, g)
model = NODE().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.95, 0.998))
for step in range(12):
    rows = slice(step * batch_size, (step + 1) * batch_size)
    prediction, bonus = model(x_train[rows])
    loss = F.huber_loss(prediction, y_train[rows], delta=2.0) - 1e-3 * bonus
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
    if step % 4 == 3:
        model.eval()
        with torch.no_grad():
            print(f"step {step} test error {F.mse_loss(model(x_test)[0], y_test).item():.6f}")
        model.train()
