"""Tensors that outlive their iteration. A mark names the rule on each line that must be found; every other line is fine."""
import torch
from torch import nn

model = nn.Linear(8, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, device):
    running = 0.0
    history, outputs, shown = [], [], []
    for x, y in loader:
        prediction = model(x.to(device))
        loss = criterion(prediction, y)
        optimizer.zero_grad(set_to_none=False)  # expect: gradients-kept-as-zeros
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()
        running += loss  # expect: loss-graph-accumulated
        running = running + loss * x.size(0)  # expect: loss-graph-accumulated
        history.append(loss)  # expect: graph-kept-in-list
        outputs.append(prediction.cpu())  # expect: graph-kept-in-list
        shown.append(loss)  # memroom: ignore[graph-kept-in-list]
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop
    return running / len(loader), history


def believes_in_cpu(loader):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss = loss.cpu()  # expect: loss-to-cpu-before-backward
        loss.backward()
        optimizer.step()


seen = []


def remember(module, inputs, output):
    seen.append(output)  # expect: hook-keeps-tensors


model.register_forward_hook(remember)


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.trail = []

    def forward(self, x):
        h = self.layer(x)
        self.trail.append(h)  # expect: module-keeps-tensors
        return h


def recurrent(rnn, loader, hidden):
    opt = torch.optim.Adam(rnn.parameters())
    for x, y in loader:
        out, hidden = rnn(x, hidden)  # expect: hidden-state-not-detached
        loss = criterion(out, y)
        loss.backward()
        opt.step()
