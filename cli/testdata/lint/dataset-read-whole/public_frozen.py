"""More shapes of public code that were once taken for mistakes."""

import numpy as np
import torch
from elsewhere import Net, images, loader, rooms
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader, Dataset

model = Net().cuda()
model.eval()
for _, p in model.named_parameters():
    p.requires_grad = False
for img in images:
    out = model(img.cuda())
    print(out.mean())


class Rooms(Dataset):
    def __init__(self):
        self.points, self.low = [], []
        for r in rooms:
            data = np.load(r)
            points, labels = data[:, :6], data[:, 6]
            self.points.append(points)  # expect: dataset-read-whole
            self.low.append(np.amin(points, axis=0))

    def __getitem__(self, i):
        return self.points[i]


train_loader = DataLoader(Rooms(), 16, num_workers=8)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.data = []
        self.fc = nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.parameters())

    def forward(self, x):
        return self.fc(x).softmax(0)

    def put_data(self, item):
        self.data.append(item)

    def train_net(self):
        total = 0
        self.optimizer.zero_grad()
        for r, prob in self.data[::-1]:
            total = r + 0.98 * total
            loss = -torch.log(prob) * total
            loss.backward()
        self.optimizer.step()
        self.data = []


def reinforce(env):
    pi = Policy()
    for _ in range(10000):
        s, done = env.reset(), False
        while not done:
            prob = pi(torch.from_numpy(s).float())
            a = Categorical(prob).sample()
            s, r, done = env.step(a.item())
            pi.put_data((r, prob[a]))
        pi.train_net()


def parts(net, opt):
    part = {}
    for step, (x, y) in enumerate(loader):
        outs = net(x.cuda())
        for i in range(6):
            part[i] = outs[i]
        score = part[0] + part[1] + part[2] + part[3]
        loss = nn.functional.cross_entropy(score, y.cuda())
        if step > 3:
            opt.zero_grad()
            loss.backward()
            opt.step()


def compiled(net, opt):
    opt = torch.compile(opt.step, mode="reduce-overhead")
    return net, opt
