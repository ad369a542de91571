"""A few pictures, one text, sizes on the host, steps that are measured."""

import torch
from nets import Critic, Generator
from torchvision.utils import save_image


class Trainer:
    def __init__(self, loader):
        self.G, self.D = Generator().cuda(), Critic().cuda()
        self.fixed_noise = torch.randn(64, 128).cuda()
        self.optimizer = torch.optim.Adam(self.G.parameters())
        self.loader = loader

    def train(self, epochs):
        for epoch in range(epochs):
            self.G.train()
            for x in self.loader:
                loss = -self.D(self.G(torch.randn(64, 128).cuda())).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.G.eval()
            shown = self.G(self.fixed_noise)  # hint: eval-without-no-grad
            save_image(shown, "epoch_%d.png" % epoch)


def sizes(net, z):
    net = net.eval().cpu()
    found = []
    for part in net.children():
        z = part(z)  # hint: eval-without-no-grad
        found.append(z.shape)
    return found


def measured(net, loader, optimizer):
    peaks = []
    for x, y in loader:
        torch.cuda.empty_cache()  # hint: empty-cache-in-loop
        torch.cuda.reset_peak_memory_stats()
        loss = (net(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peaks.append(torch.cuda.max_memory_allocated())
    return peaks


@torch.no_grad()
def captions(model, loader):
    model.eval()
    captions = []
    for x, _ in loader:
        captions.extend(model(x.cuda()))  # hint: outputs-kept-on-card
    return captions


@torch.no_grad()
def first_batch(model, loader):
    model.eval()
    kept = torch.empty(0).cuda()
    for i, (x, _) in enumerate(loader):
        if i == 0:
            kept = torch.cat([kept, model(x.cuda())])
        else:
            break
    return kept
