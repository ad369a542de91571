"""Sums that are read as numbers only. fixes: 4"""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
loader = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(6)]


def train():
    total, seen = 0, 0
    weighted = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
        weighted = weighted + loss * x.size(0)
        seen += x.size(0)
    print(f"{total / len(loader):.9f}", total.item(), float(weighted) / seen)
    return total.item() / len(loader)


def train_half():
    total = 0.0
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        total += loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    total /= len(loader)
    return float(total)


def train_twice():
    total = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        gradients = torch.autograd.grad(loss, model[0].weight, create_graph=True)[0]
        loss = loss + gradients.pow(2).sum()
        loss.backward()
        optimizer.step()
        total += loss
    return total.item()


def penalised():
    total = 0.0
    for x, y in loader:
        loss = nn.functional.l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss / 2
    print(f"{total.cpu():.9f}")


for _ in range(3):
    print(train(), train_half(), train_twice())
penalised()
print([p.sum().item() for p in model.parameters()])
