"""Figures that pyplot keeps, and figures that the writer of TensorBoard closes."""

import matplotlib.pyplot as plt


def draw(writer, step, image):
    figure, axis = plt.subplots()
    axis.imshow(image)
    writer.add_figure("image", figure, step)


def draw_and_keep(writer, step, image):
    figure, axis = plt.subplots()  # expect: figures-not-closed
    axis.imshow(image)
    writer.add_figure("image", figure, step, close=False)


def train(net, loader, optimizer, writer):
    for step, (x, y) in enumerate(loader):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        draw(writer, step, x[0].detach().cpu())
        draw_and_keep(writer, step, y[0].detach().cpu())


def train_inline(net, loader, optimizer, writer):
    for step, (x, y) in enumerate(loader):
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        picture = plt.figure(figsize=(4, 4))
        writer.add_figure("target", picture, step)
