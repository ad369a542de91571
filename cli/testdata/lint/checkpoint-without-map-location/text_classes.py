"""A network that reads words and gives classes, weights that come from an address as well as from a
path, features that are joined from parts, and rows that are cut behind a loop.
"""

import torch
from nets import DeepLab, TextNet
from torch import nn
from torch.utils import model_zoo


def train_text(loader, optimizer, loss_fn, size, classes):
    reader = TextNet(vocab_size=size.vocab, class_num=classes).cuda()
    reader = nn.DataParallel(reader)  # hint: data-parallel-first-card
    for x, y in loader:
        loss = loss_fn(reader(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_from(source, loader, optimizer, loss_fn):
    net = DeepLab().cuda()
    if source.startswith("http"):
        state = model_zoo.load_url(source)
    else:
        state = torch.load(source)  # hint: checkpoint-without-map-location
    net.load_state_dict(state)
    for x, y in loader:
        loss = loss_fn(net(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_again(source, loader, optimizer, loss_fn):
    net = DeepLab().cuda()
    state = torch.load(source)  # expect: checkpoint-without-map-location
    net.load_state_dict(state)
    for x, y in loader:
        loss = loss_fn(net(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def gallery(model, loader):
    rows = []
    model.eval()
    for images, _ in loader:
        features = torch.cat(model(images.cuda())[1], dim=1)
        rows.append(features.detach())  # hint: outputs-kept-on-card
    return torch.cat(rows)
