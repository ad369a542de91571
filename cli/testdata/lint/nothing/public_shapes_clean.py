"""Shapes of public code that were once taken for mistakes."""

import os
from contextlib import ExitStack

import numpy as np
import torch
import torch.distributed as dist
from elsewhere import make_batches, sampler
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Listed(Dataset):
    """Lines that name files or classes are not samples."""

    def __init__(self, root):
        with open(os.path.join(root, "train.txt")) as f:
            self.image_paths = f.read().splitlines()
        self.class_names = open(os.path.join(root, "classes.txt")).readlines()

    def __getitem__(self, i):
        return np.asarray(Image.open(self.image_paths[i]))


class Lines(Dataset):
    def __init__(self, listing):
        with open(listing) as f:
            self.lines = f.readlines()

    def __getitem__(self, i):
        return np.asarray(Image.open(self.lines[i].strip()))


def inference(model, loader):
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        model.eval()
        return sum(model(x.cuda()).argmax(1).sum().item() for x, _ in loader)


def inference_or_not(model, loader, quiet):
    model.eval()
    found = 0
    with ExitStack() as stack:
        if quiet:
            print("quiet")
        stack.enter_context(torch.inference_mode())
        for x, _ in loader:
            found += int(model(x.cuda()).argmax(1).sum())
    return found


def recurrent(rnn, opt, loader):
    state = rnn.begin(32)
    for x, y in loader:
        for s in state:
            s.detach_()
        out, state = rnn(x.cuda(), state)
        opt.zero_grad()
        nn.functional.cross_entropy(out, y.cuda()).backward()
        opt.step()


def recurrent_pair(lstm, head, opt, loader):
    hidden = None
    for x, y in loader:
        if hidden is not None:
            for h in hidden:
                h.detach_()
        out, hidden = lstm(x.cuda(), hidden)
        opt.zero_grad()
        nn.functional.cross_entropy(head(out), y.cuda()).backward()
        opt.step()


def gan(g, d, g_opt, d_opt, loader):
    """The generator's gradients come through the discriminator: that graph is needed."""
    for real in loader:
        fake = g(torch.randn(64, 100, device="cuda"))
        judged = d(fake)
        g_opt.zero_grad()
        judged.mean().backward(retain_graph=True)
        g_opt.step()
        d_opt.zero_grad()
        (d(real.cuda()).mean() - judged.mean()).backward()
        d_opt.step()


def run_one(model, batch, opt):
    x, y = batch
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss, {"loss": loss}, len(x)


def counted(model, opt, state, args, loader):
    seen = 0
    for batch in loader:
        loss, report, batch_size = run_one(model, batch, opt)
        seen += batch_size * args.world_size
        state.samples_seen += batch_size
    return seen, loss.item()


def shards(folder, model):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(model.cuda())
    name = f"shard_{dist.get_rank()}.pt"
    path = os.path.join(folder, name)
    states = torch.load(path)
    model.load_state_dict(states["model"])


def sample(model):
    """The sampler turns gradients off; this file only hands it a function."""
    model.eval()

    def predict(x, t):
        return model(x, t)

    images = []
    while len(images) < 100:
        images.extend(sampler.loop(predict, (8, 3, 64, 64)))
    return images


def steps(model, opt):
    for x, y in make_batches():
        out = model(x.cuda())
        loss = nn.functional.cross_entropy(out, y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss.item(), out.shape[0]


def epoch(model, opt):
    total = count = 0
    for loss, n in steps(model, opt):
        total += loss * n
        count += n
    return total / count


def listed_loader(root):
    return DataLoader(Listed(root), 32)
