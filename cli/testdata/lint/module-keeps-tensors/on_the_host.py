"""What is joined to a tensor of the host lies there; what each epoch begins anew is emptied."""

from collections import defaultdict

import torch
from pytorch_lightning import Callback


def latent(net, loader, width):
    net.eval()
    means = torch.empty((0, width), dtype=torch.float32)
    kept = torch.zeros(0)
    with torch.no_grad():
        for x, _ in loader:
            mean, sample = net(x)
            means = torch.cat((means, mean))
            kept = torch.cat((kept, sample))
    return means, kept


def latent_on_card(net, loader, width):
    net.cuda().eval()
    means = torch.empty((0, width)).cuda()
    with torch.no_grad():
        for x, _ in loader:
            means = torch.cat((means, net(x.cuda())))  # hint: outputs-kept-on-card
    return means.cpu()


def plotted(net, env, points):
    net.eval()
    obs = env.reset()
    for x in points:
        obs[3] = x
        obs_n = torch.from_numpy(obs).float().cuda()
        print(net(obs_n).detach().cpu().numpy())  # hint: eval-without-no-grad


class OfEachEpoch(Callback):
    def on_epoch_begin(self, **kwargs):
        self.losses = defaultdict(list)

    def on_batch_end(self, loss, **kwargs):
        self.losses["train"].append(loss)


class OfAllEpochs(Callback):
    def __init__(self):
        self.terms = defaultdict(list)

    def on_batch_end(self, loss, **kwargs):
        self.terms["train"].append(loss)  # expect: module-keeps-tensors
