import torch
import torch.nn as nn
import torch.nn.functional as F
from medical.data import XrayFolder
from torch.utils.data import DataLoader
from torchvision.models import efficientnet_b4


def set_depth(model, depth):
    blocks = list(model.features)
    for i, block in enumerate(blocks):
        for p in block.parameters():
            p.requires_grad_(i >= len(blocks) - depth)


class GradualUnfreeze:
    def __init__(self, model, base_lr):
        self.model = model
        self.base_lr = base_lr
        self.optimizers = []

    def start_epoch(self, epoch):
        set_depth(self.model, min(epoch + 1, 9))
        params = [p for p in self.model.parameters() if p.requires_grad]
        opt = torch.optim.Adam(params, lr=self.base_lr * 0.9**epoch)
        self.optimizers.append(opt)  # expect: optimizers-kept
        return opt

    def describe(self):
        lrs = [o.param_groups[0]["lr"] for o in self.optimizers]
        return f"lr {lrs[0]:.2e} -> {lrs[-1]:.2e}"


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = n = 0
    for x, y in loader:
        right += (model(x.to(device)).argmax(1).cpu() == y).sum().item()
        n += y.numel()
    return right / n


def main(epochs=40):
    device = "cuda"
    model = efficientnet_b4(weights="DEFAULT")
    model.classifier[1] = nn.Linear(model.classifier[1].in_features, 14)
    model.to(device)
    train = DataLoader(XrayFolder("train"), 24, shuffle=True, num_workers=8)
    val = DataLoader(XrayFolder("val"), 48, num_workers=8)
    plan = GradualUnfreeze(model, 3e-4)
    for epoch in range(epochs):
        opt = plan.start_epoch(epoch)
        model.train()
        for x, y in train:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        print(epoch, plan.describe(), evaluate(model, val, device))


if __name__ == "__main__":
    main()


class GradualUnfreezeClean:
    def __init__(self, model, base_lr):
        self.model = model
        self.base_lr = base_lr
        self.optimizer = None

    def start_epoch(self, epoch):
        set_depth(self.model, min(epoch + 1, 9))
        params = [p for p in self.model.parameters() if p.requires_grad]
        opt = torch.optim.Adam(params, lr=self.base_lr * 0.9**epoch)
        self.optimizer = opt
        return opt

    def describe(self):
        return f"lr {self.base_lr:.2e} -> {self.optimizer.param_groups[0]['lr']:.2e}"


def main_clean(epochs=40):
    device = "cuda"
    model = efficientnet_b4(weights="DEFAULT")
    model.classifier[1] = nn.Linear(model.classifier[1].in_features, 14)
    model.to(device)
    train = DataLoader(XrayFolder("train"), 24, shuffle=True, num_workers=8)
    val = DataLoader(XrayFolder("val"), 48, num_workers=8)
    plan = GradualUnfreezeClean(model, 3e-4)
    for epoch in range(epochs):
        opt = plan.start_epoch(epoch)
        model.train()
        for x, y in train:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        print(epoch, plan.describe(), evaluate(model, val, device))


if __name__ == "__main__":
    main_clean()
