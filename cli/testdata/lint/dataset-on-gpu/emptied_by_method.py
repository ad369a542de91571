"""What a method empties or a caller asks for, what stops at a limit, rows of one batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Selector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.chosen, self.maps, self.seen = nn.Linear(8, 4), [], [], []
        self.forget()

    def forget(self):
        self.chosen = []

    def forward(self, x, keep):
        out = self.body(x)
        self.chosen.append(out.softmax(-1))  # hint: module-keeps-tensors
        if keep:
            self.maps.append(out)  # hint: module-keeps-tensors
        self.seen.append(out.sigmoid())  # expect: module-keeps-tensors
        return out


def look(dataset, net, optimizer, loss_fn, limit):
    loader = DataLoader(  # hint: loader-buffers
        dataset, batch_size=1024, num_workers=2, persistent_workers=True
    )
    shown, kept = [], []
    for x, y in loader:
        if len(shown) < limit:
            x = x.cuda()
            shown.append((x, y))  # hint: dataset-on-gpu
        first = x.cuda()
        kept.append((first, y))  # expect: dataset-on-gpu
        optimizer.zero_grad()
        loss_fn(net(first), y.cuda()).backward()
        optimizer.step()


def stop_early(model, left, target, steps, loss_fn):
    left, done = left.cuda(), torch.zeros(0, 3, 32, 32).cuda()
    while steps > 0:
        left.requires_grad_()
        output = model(left)
        index = (output.argmax(1) != target).nonzero()[:, 0]
        done = torch.cat((done, left[index].reshape(-1, 3, 32, 32).cuda()), dim=0)
        loss_fn(output, target).backward()
        left = left.detach() + left.grad.sign()
        steps -= 1
    return done
