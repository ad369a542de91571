import math
import os

import torch
import torch.nn as nn

# Physics-informed network for viscous Burgers:  u_t + u u_x = nu u_xx
# 10 Adam iterations, then L-BFGS with strong Wolfe line search.

small = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1234)

N_F = 500 if small else 60_000
N_U = 50 if small else 2_000
LAYERS = [2] + ([16] * 3 if small else [256] * 8) + [1]
NU = 0.01 / math.pi


class MLP(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(a, b) for a, b in zip(layers[:-1], layers[1:])])
        self.a = nn.Parameter(torch.ones(len(layers) - 2))  # adaptive slopes
        for l in self.linears:  # noqa: E741
            nn.init.xavier_normal_(l.weight)
            nn.init.zeros_(l.bias)

    def forward(self, x):
        for i, l in enumerate(self.linears[:-1]):  # noqa: E741
            x = torch.tanh(self.a[i] * l(x))
        return self.linears[-1](x)


class PINN:
    def __init__(self):
        g = torch.Generator().manual_seed(1234)
        self.x_f = (torch.rand(N_F, 1, generator=g) * 2 - 1).to(device).requires_grad_(True)
        self.t_f = torch.rand(N_F, 1, generator=g).to(device).requires_grad_(True)
        x0 = torch.rand(N_U, 1, generator=g) * 2 - 1
        tb = torch.rand(N_U, 1, generator=g)
        side = torch.where(torch.rand(N_U, 1, generator=g) < 0.5, -1.0, 1.0)
        self.xt_u = torch.cat(
            [torch.cat([x0, torch.zeros_like(x0)], 1), torch.cat([side, tb], 1)]
        ).to(device)
        self.u = torch.cat([-torch.sin(math.pi * x0), torch.zeros_like(tb)]).to(device)
        self.net = MLP(LAYERS).to(device)
        self.iter = 0
        self.adam = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.lbfgs = torch.optim.LBFGS(
            self.net.parameters(),
            lr=1.0,
            max_iter=4,
            max_eval=6,
            history_size=10,
            tolerance_grad=1e-9,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

    def net_f(self):
        u = self.net(torch.cat([self.x_f, self.t_f], dim=1))
        ones = torch.ones_like(u)
        u_t = torch.autograd.grad(u, self.t_f, ones, retain_graph=True, create_graph=True)[0]
        u_x = torch.autograd.grad(u, self.x_f, ones, retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, self.x_f, ones, retain_graph=True, create_graph=True)[0]
        return u_t + u * u_x - NU * u_xx

    def loss(self):
        mse_u = torch.mean((self.net(self.xt_u) - self.u) ** 2)
        mse_f = torch.mean(self.net_f() ** 2)
        return mse_u + mse_f, mse_u, mse_f

    def closure(self):
        self.lbfgs.zero_grad()
        loss, _, _ = self.loss()
        loss.backward()
        return loss

    def train(self):
        for _ in range(10):
            self.adam.zero_grad()
            loss, mse_u, mse_f = self.loss()
            loss.backward()
            self.adam.step()
            print(
                f"step {self.iter} loss {loss.item():.8f} u {mse_u.item():.6f} f {mse_f.item():.6f}"
            )
            self.iter += 1
        for _ in range(5):
            loss = self.lbfgs.step(self.closure)
            print(f"step {self.iter} loss {loss.item():.8f} lbfgs")
            self.iter += 1


model = PINN()
model.train()
