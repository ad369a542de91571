"""What an inner loop gathers until gradients are taken behind it, and what none is taken from."""

import torch
from steps import update_meters, update_weights


def vary(critic, writer, optimizer, other, loss_fn, rounds):
    for _ in range(rounds):
        loss, judged = 0, []
        for part in writer.sample(8):
            out = critic(part)  # hint: rollout-with-grad
            loss += loss_fn(out)  # hint: loss-graph-accumulated
            judged.append(out.view(64, -1))  # hint: graph-kept-in-list
        loss += loss_fn(torch.cat(judged))
        update_weights(optimizer, loss)
        extra = loss_fn(writer(torch.zeros(8)))
        other.zero_grad()
        extra.backward()
        other.step()


def train(model, loader, optimizer, scheduler, loss_fn, epochs):
    for _ in range(epochs):
        kept, total = [], 0
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(loss)  # expect: graph-kept-in-list
            total += loss  # expect: loss-graph-accumulated
        scheduler.step(total)
        update_meters(total)
