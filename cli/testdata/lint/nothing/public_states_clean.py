"""States, caches and results of public code that were once taken for mistakes."""

import numpy as np
import torch
from elsewhere import bits_per_dim, loader, repackage_hidden, vocoder
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Attention(nn.Module):
    """A sequence begins in init_states: the state lives as long as one sequence."""

    def __init__(self):
        super().__init__()
        self.query, self.gate = nn.Linear(8, 8), nn.Linear(8, 1)

    def init_states(self, inputs):
        self.u = 0.5 * torch.ones(len(inputs), 1)
        self.weights = torch.zeros(len(inputs), 8)

    def forward(self, x):
        self.weights = self.weights + self.u * self.query(x)
        self.u = torch.sigmoid(self.gate(x)) * self.u
        return self.weights


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(1, 3, 1, 1)
        self.conv = nn.Conv2d(3, 3, 3)
        self.plus = nn.quantized.FloatFunctional()

    def forward(self, x):
        self.mean = self.mean.type_as(x)
        return self.plus.add(self.conv(x - self.mean), self.mean)


def several_states(net, opt):
    hidden = [net.begin(4), net.begin(4)]
    for data in loader:
        for s in range(2):
            hidden[s] = repackage_hidden(hidden[s])
            out, hidden[s] = net(data[s].cuda(), hidden[s])
            opt.zero_grad()
            out.mean().backward()
            opt.step()


class Sharpen:
    def __init__(self, net):
        self.net = net

    @torch.no_grad()
    def next_prior_and_model(self, logits, prior, mean_model):
        p = logits.softmax(1).mean(0)
        mean_model = p if mean_model is None else mean_model * 0.9 + p * 0.1
        return prior * 0.9 + p * 0.1, mean_model

    def fit(self, opt):
        prior, mean_model = torch.ones(10), None
        for x, y in loader:
            logits = self.net(x)
            prior, mean_model = self.next_prior_and_model(logits, prior, mean_model)
            loss = nn.functional.cross_entropy(logits * prior, y)
            opt.zero_grad()
            loss.backward()
            opt.step()


windows = {}


class Speech(Dataset):
    """One window for each device or rate, however many samples are read."""

    def __init__(self, files, mode):
        self.files = files
        if mode == "test":
            self.pieces = []
            for f in files:
                self.pieces.append((f, 0))

    def __getitem__(self, i):
        y = torch.from_numpy(np.load(self.files[i]))
        if str(y.device) not in windows:
            windows[str(y.device)] = torch.hann_window(1024)
            windows["rate_%s" % y.dtype] = torch.ones(1024)
        return y * windows[str(y.device)]


def speech(files):
    return DataLoader(Speech(files, "train"), 4, num_workers=8)


def openmmlab(model, data_loader):
    results = []
    model.cuda().eval()
    for data in data_loader:
        with torch.no_grad():
            result = model(return_loss=False, rescale=True, **data)
        results.append(result)
    return results


def embeddings(wavs):
    vocoder.eval()
    for w in wavs:
        np.save(w.name, vocoder.compute_embedding(w.cuda()).cpu().numpy())


def resume(path, net, opt):
    ckpt = torch.load(path)
    net.load_state_dict(ckpt["net"])
    opt.load_state_dict(ckpt["optimizer"])
    return ckpt["epoch"], ckpt["best_score"]


def train(path, net, opt):
    start, best = resume(path, net.cuda(), opt)
    for epoch in range(start, 100):
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x.cuda()), y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
    return best


def build(path, net, opt):
    """The closure holds what it uses, not the checkpoint."""
    ckpt = torch.load(path)
    net.load_state_dict(ckpt["net"])
    scale = 2.0

    def query(x):
        return net(x.cuda()) * scale

    return query


def train_built(path, net, opt):
    query = build(path, net.cuda(), opt)
    for x, y in loader:
        loss = nn.functional.mse_loss(query(x), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()


def validate(net, test_loader):
    losses, rewards = [], []
    net.cuda()
    for x, y in test_loader:
        with torch.no_grad():
            loss = bits_per_dim(x.cuda(), net)
            reward, _ = net(y.cuda())
        losses.append(loss)
        rewards.append(reward.data[0].item())
    return torch.stack(losses).mean(), rewards
