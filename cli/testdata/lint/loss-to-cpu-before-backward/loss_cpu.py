import torch
import torch.nn.functional as F



def train(model, loader, optimizer):
    for x, y in loader:
        out = model(x.cuda())
        loss = F.cross_entropy(out, y.cuda()).cpu()  # expect: loss-to-cpu-before-backward
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
