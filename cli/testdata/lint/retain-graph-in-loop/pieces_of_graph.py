"""One pass, differentiated piece by piece: its graph is needed until the last."""

import torch


def gradient_of_each(model, criterion, batch, targets):
    found = []
    scores = model(batch)
    scores = scores.chunk(scores.size(0))
    for score, target in zip(scores, targets):
        loss = criterion(score, target)
        model.zero_grad()
        loss.backward(retain_graph=True)  # hint: retain-graph-in-loop
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
    return found


def look_at_gradients(generator, critic, batches, draw):
    for batch in batches:
        loss = critic(generator(batch)).mean()
        loss.backward()
        draw(generator)


def train(model, criterion, loader, optimizer):
    for batch, target in loader:
        loss = criterion(model(batch), target)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()
