"""All logits stay on the card until they are joined: of how many classes is not in the file."""

import torch
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(model, loader, optimizer):
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model, loader):
    model.eval()
    all_logits, all_labels = [], []
    with torch.no_grad():
        for x, y in loader:
            logits = model(x.to(device))
            all_logits.append(logits)  # hint: outputs-kept-on-card
            all_labels.append(y)
    all_logits = torch.cat(all_logits)
    labels = torch.cat(all_labels).to(device)
    return F.cross_entropy(all_logits, labels).item()
