"""A graph that was begun before the loop is needed by every round; one of the loop's own is not."""

import torch


def prompts(clip_model, net, loader, optimizer, tokens, criterion):
    text_features = clip_model.encode_text(tokens)
    for x, y in loader:
        loss = criterion(net(x) @ text_features.t(), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # hint: retain-graph-in-loop
        optimizer.step()


def plain(net, loader, optimizer, criterion):
    for x, y in loader:
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()
