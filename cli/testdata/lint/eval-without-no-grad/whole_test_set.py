import numpy as np
import torch
from torch import nn

x_test = torch.from_numpy(np.load("x_test.npy")).cuda()
model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
opt = torch.optim.Adam(model.parameters())


def train(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    pred = model(x_test).argmax(1)  # expect: eval-without-no-grad
    return pred
