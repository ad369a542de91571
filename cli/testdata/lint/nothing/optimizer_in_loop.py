"""An optimizer made in the loop, for tensors that are new each time: nothing to clear."""
import torch


def guide(model, images):
    for image in images:
        x = image.clone().requires_grad_()
        opt = torch.optim.SGD([x], lr=0.1)
        loss = model(x).mean()
        loss.backward()
        opt.step()
