import torch
from torch import nn
from shop import train_loader

history = {"train": []}


def note(kind, value):
    history[kind].append(value)


def after_step(step, loss):
    if step % 10 == 0:
        print(step, float(loss))
    note("train", loss.item())


def run(model, opt, crit):
    for step, (x, y) in enumerate(train_loader):
        loss = crit(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        after_step(step, loss)


if __name__ == "__main__":
    model = nn.Linear(64, 10).cuda()
    run(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss())
