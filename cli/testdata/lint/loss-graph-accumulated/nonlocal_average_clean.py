import torch
from torch import nn

from feed import stream


def smoother(beta=0.98):
    avg = None

    def see(v):
        nonlocal avg
        avg = v.item() if avg is None else beta * avg + (1 - beta) * v.item()
        return avg

    return see


def train(model, opt):
    smooth = smoother()
    for step, (x, y) in enumerate(stream()):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        shown = smooth(loss)
        if step % 100 == 0:
            print(step, float(shown))


if __name__ == "__main__":
    model = nn.LSTM(64, 512, num_layers=3).cuda()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    train(model, torch.optim.Adam(model.parameters()))
