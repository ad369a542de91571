"""Scores of some classes for each sample are small; one for each pixel or each word is not."""

import torch
from sklearn.metrics import roc_auc_score

device = torch.device("cuda")


def graded(net, loader):
    net.eval()
    truth, scores = torch.zeros(0), torch.zeros(0, device=device)
    with torch.no_grad():
        for x, y in loader:
            y_hat = net(x.to(device))
            scores = torch.cat((scores, y_hat))  # hint: outputs-kept-on-card
            truth = torch.cat((truth, y))
    return roc_auc_score(truth, scores.softmax(1)[:, 1].cpu())


def selected(net, loader, indices):
    net.eval()
    all_logits = []
    with torch.no_grad():
        for x, _ in loader:
            logits = net(x.to(device))
            all_logits.append(logits[indices])  # hint: outputs-kept-on-card
    return torch.cat(all_logits)


def segmented(net, loader):
    net.eval()
    logits = []
    with torch.no_grad():
        for pixels, _ in loader:
            logits.append(net(pixels.to(device)))  # expect: outputs-kept-on-card
    return torch.cat(logits).argmax(1)


def worded(causal_lm, loader):
    causal_lm.eval()
    logits = []
    with torch.no_grad():
        for x in loader:
            logits.append(causal_lm(x.to(device)))  # expect: outputs-kept-on-card
    return torch.cat(logits).log_softmax(-1)
