"""One chance for each sample is small."""

import torch
from sklearn.metrics import roc_auc_score
from torch import nn

device = "cuda"
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)


def validate(net, val_loader):
    net.eval()
    predictions, truth = [], []
    with torch.no_grad():
        for rows, target in val_loader:
            out = net(rows.to(device))
            predictions.append(out.softmax(dim=1)[:, 1])  # hint: outputs-kept-on-card
            truth.append(target)
    return roc_auc_score(torch.cat(truth), torch.cat(predictions).cpu())
