"""Averages of weights while nothing wants gradients, and the same where something does."""

import torch


def toggle_grad(model, wanted):
    for p in model.parameters():
        p.requires_grad_(wanted)


def follow(shadow, model, beta):
    toggle_grad(shadow, False)
    toggle_grad(model, False)
    source = dict(model.named_parameters())
    for name, p in shadow.named_parameters():
        p.copy_(beta * p + (1 - beta) * source[name])  # hint: graph-kept-in-list
    toggle_grad(model, True)


def follow_frozen(shadow, model, beta):
    for p in [*shadow.parameters(), *model.parameters()]:
        p.requires_grad = False
    for p, q in zip(shadow.parameters(), model.parameters()):
        p.copy_(beta * p + (1 - beta) * q)  # hint: graph-kept-in-list


def train(shadow, model, loader, optimizer):
    for x in loader:
        loss = model(x.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(shadow, model, 0.99)
        follow_frozen(shadow, model, 0.99)


def pictures(pipeline, prompts, unet, noise, optimizer):
    images, frames = [], []
    for prompt in prompts:
        loss = unet(noise, prompt).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        images.append(pipeline(prompt, num_inference_steps=50).images[0])
        picture = pipeline(prompt)
        frames.append(picture.frames)
    return images, frames


def means(loader, model, optimizer, average):
    for x in loader:
        out = model(x.cuda())
        loss = out.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average = 0.9 * average + 0.1 * out.mean(0)  # expect: graph-kept-in-list
    return torch.save(average, "average.pt")
