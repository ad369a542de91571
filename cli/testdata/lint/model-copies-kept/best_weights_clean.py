import logging

import timm
import torch
import torch.nn as nn
from satellites.data import Eurosat
from torch.utils.data import DataLoader

log = logging.getLogger(__name__)


class Keeper:
    """Remembers the best weights and can put them back."""

    def __init__(self, patience=8):
        self.patience = patience
        self.weights = None
        self.score = float("-inf")
        self.bad = 0

    def step(self, model, score):
        if score > self.score:
            self.score = score
            self.bad = 0
            self.weights = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience

    def restore(self, model):
        model.load_state_dict(self.weights)


def accuracy(model, loader, device):
    model.eval()
    right = count = 0
    with torch.no_grad():
        for x, y in loader:
            pred = model(x.to(device)).argmax(1).cpu()
            right += (pred == y).sum().item()
            count += len(y)
    return right / count


def main():
    logging.basicConfig(level=logging.INFO)
    device = torch.device("cuda")
    model = timm.create_model("convnext_large", pretrained=True, num_classes=10).to(device)
    opt = torch.optim.AdamW(model.parameters(), 5e-5, weight_decay=0.05)
    train = DataLoader(Eurosat("train"), 32, shuffle=True, num_workers=6)
    val = DataLoader(Eurosat("val"), 64, num_workers=6)
    keeper = Keeper()
    for epoch in range(100):
        model.train()
        for x, y in train:
            loss = nn.functional.cross_entropy(
                model(x.to(device)), y.to(device), label_smoothing=0.1
            )
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        acc = accuracy(model, val, device)
        log.info("epoch %d acc %.4f", epoch, acc)
        if keeper.step(model, acc):
            break
    keeper.restore(model)
    torch.save(model.state_dict(), "convnext_eurosat.pt")


if __name__ == "__main__":
    main()
