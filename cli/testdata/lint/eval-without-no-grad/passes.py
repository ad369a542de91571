"""Evaluation over data and looks at something small; functions that the script never calls; losses
kept once a batch and once an epoch.
"""

import torch
from depot import Photos, Tower, on_device
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
opt = torch.optim.AdamW(net.parameters())


def describe(encoder, decoder, photo, beam):
    decoder.eval()
    words, state = torch.zeros(beam, 1).long().cuda(), encoder(photo.cuda())
    while words.size(1) < 50:
        scores = decoder(words, state)  # hint: eval-without-no-grad
        words = torch.cat([words, scores.argmax(-1, keepdim=True)], 1)
    return words


def denoise(unet, x, alphas):
    unet.eval()
    for step in range(len(alphas)):
        noise = unet(x, alphas[step])  # expect: eval-without-no-grad
        x = (x - noise) * alphas[step]
    return x.detach()


def compare(layers, other, x):
    other.eval()
    for k in range(layers):
        y = other(x, k)  # hint: eval-without-no-grad
        print(k, y.abs().max().item())


def accuracy(model, loader):
    model.eval()
    bar = iter(loader)
    right = 0
    while (batch := next(bar, None)) is not None:
        guess = model(batch[0].cuda()).argmax(1)  # expect: eval-without-no-grad
        right += (guess.cpu() == batch[1]).sum().item()
    return right


def old_accuracy(model, loader):
    model.eval()
    right = 0
    for x, y in loader:
        right += (model(x.cuda()).argmax(1).cpu() == y).sum().item()  # hint: eval-without-no-grad
    return right


@on_device("cuda", no_grad=True)
def quiet_accuracy(model, loader):
    model.eval()
    right = 0
    for x, y in loader:
        right += (model(x.cuda()).argmax(1).cpu() == y).sum().item()
    return right


def train(loader, epochs):
    each, last = [], []
    for epoch in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(net(x.cuda()), y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
            each.append(loss)  # expect: graph-kept-in-list
        last.append(loss)  # hint: graph-kept-in-list
    return each, last


def resume(path):
    saved = torch.load(path)  # hint: checkpoint-without-map-location
    model = Tower(saved["width"]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return (saved, saved["epoch"]) + (model, optimizer)


def go_on(path, loader):
    saved, first, model, optimizer = resume(path)
    del saved
    for _ in range(first, 90):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()


if __name__ == "__main__":
    held_out = DataLoader(Photos("val"), 64)
    go_on("last.pt", DataLoader(Photos("train"), 64))
    print(train(DataLoader(Photos("train"), 64, shuffle=True), 90))
    print(accuracy(net, held_out), quiet_accuracy(net, held_out))
    print(describe(net, net, Photos("val")[0], 5), denoise(net, Photos("val")[0], torch.ones(50)))
    compare(12, net, Photos("val")[0])
