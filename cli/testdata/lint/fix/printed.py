"""A tensor prints its grad_fn; a loss that is a number has no detach; a sum read by its name.
fixes: 0"""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def shown():
    total = 0.0
    for _ in range(3):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    print("total", total, f"{total}")


def sometimes_a_number():
    total = 0.0
    for i in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 4)).pow(2).mean()
        if i % 2:
            loss = 1.5
        else:
            loss.backward()
            optimizer.step()
        total += loss
    return total.item()


def by_name():
    total = 0.0
    for _ in range(3):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    return locals()["total"].requires_grad


def in_a_closure():
    total = 0.0

    def show():
        return total.requires_grad

    for _ in range(3):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    return show()


shown()
print(sometimes_a_number(), by_name(), in_a_closure())
