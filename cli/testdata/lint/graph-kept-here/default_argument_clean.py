"""The log is a default argument: one dict for as long as the program runs."""

import torch
import torch.nn.functional as F


def remember(step, values, log={}):  # noqa: B006
    log[step] = values
    return log


def train(model, batches, optimizer, scheduler, steps):
    model.cuda().train()
    for step in range(steps):
        tokens = next(batches).cuda()
        logits = model(tokens[:, :-1])
        nll = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        z = torch.logsumexp(logits, -1).pow(2).mean()
        optimizer.zero_grad()
        (nll + 1e-4 * z).backward()
        optimizer.step()
        scheduler.step()
        remember(step, {"nll": nll.item(), "lr": scheduler.get_last_lr()[0]})
    return remember(steps, {})
