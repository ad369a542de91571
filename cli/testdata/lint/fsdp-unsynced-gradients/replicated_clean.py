"""DistributedDataParallel holds whole gradients anyway: no_sync costs it nothing."""

from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def train(model, optimizer, loader, every):
    model = DistributedDataParallel(model.cuda())
    for i, (x, y) in enumerate(loader, 1):
        loss = F.mse_loss(model(x.cuda()), y.cuda()) / every
        if i % every:
            with model.no_sync():
                loss.backward()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
