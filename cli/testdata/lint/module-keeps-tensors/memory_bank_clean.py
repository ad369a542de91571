import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


class TwoViews:
    def __init__(self, tf):
        self.tf = tf

    def __call__(self, image):
        return self.tf(image), self.tf(image)


class Contrast(nn.Module):
    def __init__(self, dim=128, size=65_536, m=0.999, t=0.2):
        super().__init__()
        self.query = models.resnet50(num_classes=dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.m, self.t, self.size = m, t, size
        self.bank = None

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    def push(self, keys):
        if self.bank is None:
            self.bank = keys
        else:
            self.bank = torch.cat([self.bank, keys])[-self.size :]

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(b), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        logits = pos if self.bank is None else torch.cat([pos, q @ self.bank.T], 1)
        self.push(k)
        target = torch.zeros(len(q), dtype=torch.long, device=q.device)
        return F.cross_entropy(logits / self.t, target)


def main(epochs=200):
    tf = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, (0.2, 1.0)),
            transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    data = datasets.ImageFolder("/data/unlabelled", TwoViews(tf))
    loader = DataLoader(data, 256, shuffle=True, num_workers=12, drop_last=True, pin_memory=True)
    net = Contrast().cuda()
    opt = torch.optim.SGD(net.query.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        for step, ((a, b), _) in enumerate(loader):
            loss = net(a.cuda(non_blocking=True), b.cuda(non_blocking=True))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if step % 50 == 0:
                print(epoch, step, loss.item())
        torch.save(net.query.state_dict(), "moco.pt")


if __name__ == "__main__":
    main()
