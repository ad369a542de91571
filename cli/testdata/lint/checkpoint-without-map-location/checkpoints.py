"""Checkpoints of ranks, of one process, and of a program that only tests."""

import sys

import torch
import torch.distributed as dist


def start(model, path, distributed, card):
    if distributed:
        dist.init_process_group("nccl")
        state = torch.load(path, map_location="cuda:%d" % card)
    else:
        state = torch.load(path)
    model.load_state_dict(state)


def start_all(model, path):
    dist.init_process_group("nccl")
    state = torch.load(path)  # expect: checkpoint-without-map-location
    model.load_state_dict(state)


def main(model, optimizer, loader, args):
    model.cuda()
    if args.test_only:
        state = torch.load(args.path)
        model.load_state_dict(state["model"])
        sys.exit(0)
    if args.resume:
        saved = torch.load(args.path)  # expect: checkpoint-without-map-location
        model.load_state_dict(saved["model"])
    for x, y in loader:
        loss = (model(x.cuda()) - y.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
