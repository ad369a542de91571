"""What the file alone does not prove is a hint."""

import numpy as np
import torch
from keras.models import load_model
from torch import nn
from torch.nn.utils.rnn import pad_sequence


def setup(config):
    if config.find_nan:
        torch.autograd.set_detect_anomaly(True)  # hint: anomaly-mode-on


def always():
    torch.autograd.set_detect_anomaly(True)  # expect: anomaly-mode-on


def fast(model):
    return torch.compile(model, mode="reduce-overhead")  # expect: cuda-graph-per-shape


def collate(samples):
    return pad_sequence(samples)


def uploads(uploaded):
    keras_model = load_model("m.keras")
    for name in uploaded.keys():
        print(keras_model.predict(np.load(name)))  # hint: keras-predict-in-loop


def one_by_one(stages, x):
    """Blocks of a model, not batches."""
    for width in (8, 16, 32):
        block = nn.Linear(width, 2 * width)
        block.eval()
        x = block(x)  # hint: eval-without-no-grad
    return x.shape


def style(model, image, style_losses, optimizer):
    """The terms of one loss are as many as somebody wrote down."""
    for _ in range(300):
        optimizer.zero_grad()
        model(image)
        score = 0
        for term in style_losses:
            part = term(image)
            part.backward(retain_graph=True)  # expect: retain-graph-in-loop
            score = score + part
        print(score.item())
        optimizer.step()


def accumulated(model, loader, optimizer, accelerator, loss_fn, steps):
    """A window of accumulation is a few rounds long."""
    shown = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = loss_fn(model(x), y)
            shown += loss / steps
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            print(shown)
            shown = 0


def forces(model, loader):
    """Gradients by the positions need the graph."""
    model.eval()
    found = []
    for data in loader:
        data.pos.requires_grad = True
        energy = model(data.to("cuda")).sum()
        (grad,) = torch.autograd.grad(outputs=energy, inputs=data.pos)
        found.extend(grad.tolist())
    return found
