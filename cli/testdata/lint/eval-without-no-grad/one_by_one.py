"""One sample at a time holds the graph of one sample; text is cut into words without one."""

import sys

import matplotlib.pyplot as plt
import torch


def figures(net, names, scenes):
    net.eval()
    for name, scene in zip(names, scenes):
        out = net(scene.unsqueeze(0))  # hint: eval-without-no-grad
        if name.endswith("colour"):
            plt.imshow(out[0].detach().numpy())
        plt.savefig(name)


def turned(net, pose, count):
    net.eval()
    for i in range(count):
        out = net(torch.Tensor(pose).view((1, -1)).cuda())  # hint: eval-without-no-grad
        print(i, out.sum().item())


class Filler:
    def __init__(self, model):
        self.model = model
        self.model.eval()

    def run(self, rows):
        for row in rows:
            ids = self.model.encode(row["question"])
            print(len(ids))


def looked_at_once(net, test_loader):
    net.eval()
    for x, y in test_loader:
        out = net(x.cuda())  # hint: eval-without-no-grad
        print(out.shape, y.shape)
        sys.exit()


def tried(net, test_loader, draw):
    net.eval()
    for x, _ in test_loader:
        draw(x)
        stop  # noqa: B018, F821
        for part in x.chunk(4):
            out = net(part.cuda())  # hint: eval-without-no-grad
            draw(out)


def measured(net, test_loader):
    net.eval()
    right = 0
    for x, y in test_loader:
        out = net(x.cuda())  # expect: eval-without-no-grad
        right += (out.argmax(1).cpu() == y).sum().item()
    return right
