import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
P, K = (3, 2) if SMALL else (24, 4)  # classes per batch, samples per class
NPOINTS = 64 if SMALL else 2048
NCLASS = 6 if SMALL else 40
C = 32 if SMALL else 1024  # global feature
STEPS = 15
MARGIN = 0.3


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv1d(k, 64, 1),
            nn.Conv1d(64, 128, 1),
            nn.Conv1d(128, C, 1),
        )
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(C, C // 2),
            nn.Linear(C // 2, C // 4),
            nn.Linear(C // 4, k * k),
        )
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(64), nn.BatchNorm1d(128), nn.BatchNorm1d(C)
        self.bn4, self.bn5 = nn.BatchNorm1d(C // 2), nn.BatchNorm1d(C // 4)

    def forward(self, x):
        b = x.size(0)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = torch.max(x, 2)[0]
        x = F.relu(self.bn4(self.fc1(x)))
        x = F.relu(self.bn5(self.fc2(x)))
        iden = torch.eye(self.k, device=x.device).view(1, -1).repeat(b, 1)
        return (self.fc3(x) + iden).view(-1, self.k, self.k)


class PointNet(nn.Module):
    def __init__(self, emb=256):
        super().__init__()
        self.stn, self.fstn = TNet(3), TNet(64)
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv1d(3, 64, 1),
            nn.Conv1d(64, 128, 1),
            nn.Conv1d(128, C, 1),
        )
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(64), nn.BatchNorm1d(128), nn.BatchNorm1d(C)
        self.head = nn.Sequential(
            nn.Linear(C, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, emb)
        )

    def forward(self, x):
        trans = self.stn(x)
        x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        x = F.relu(self.bn1(self.conv1(x)))
        trans_feat = self.fstn(x)
        x = torch.bmm(x.transpose(2, 1), trans_feat).transpose(2, 1)
        x = F.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x = torch.max(x, 2)[0]
        return F.normalize(self.head(x), dim=1), trans_feat


def feature_transform_regularizer(trans):
    eye = torch.eye(trans.size(1), device=trans.device)[None]
    return torch.mean(torch.norm(torch.bmm(trans, trans.transpose(2, 1)) - eye, dim=(1, 2)))


def batch_hard_triplet_loss(emb, labels, margin):
    sq = (emb * emb).sum(1)
    dist = (sq[:, None] + sq[None] - 2 * emb @ emb.t()).clamp(min=1e-12).sqrt()
    same = labels[:, None] == labels[None]
    eye = torch.eye(len(labels), dtype=torch.bool, device=emb.device)
    hardest_pos = dist.masked_fill(~same | eye, -1.0).max(dim=1)[0]
    hardest_neg = dist.masked_fill(same, float("inf")).min(dim=1)[0]
    loss = F.relu(hardest_pos - hardest_neg + margin)
    return loss.mean(), (loss > 0).float().mean()


class PKSampler:
    """yields P classes x K point clouds; clouds are jittered, rotated class templates"""

    def __init__(self, gen):
        self.gen = gen
        self.templates = F.normalize(torch.randn(NCLASS, NPOINTS, 3, generator=gen), dim=-1)
        self.templates *= 0.3 + torch.rand(NCLASS, 1, 3, generator=gen)

    def __next__(self):
        cls = torch.randperm(NCLASS, generator=self.gen)[:P].repeat_interleave(K)
        pts = self.templates[cls].clone()
        theta = torch.rand(P * K, generator=self.gen) * 6.2831853
        c, s = theta.cos(), theta.sin()
        z, o = torch.zeros_like(c), torch.ones_like(c)
        rot = torch.stack([c, -s, z, s, c, z, z, z, o], 1).view(-1, 3, 3)
        pts = pts @ rot + 0.02 * torch.randn(pts.shape, generator=self.gen)
        return pts.transpose(1, 2).contiguous(), cls


torch.backends.cudnn.deterministic = True
torch.manual_seed(4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
sampler = PKSampler(torch.Generator().manual_seed(4))
model = PointNet().to(device).train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)

for step in range(STEPS):
    optimizer.zero_grad()
    points, target = next(sampler)
    points, target = points.to(device), target.to(device)
    emb, trans_feat = model(points)
    loss, frac = batch_hard_triplet_loss(emb, target, MARGIN)
    loss = loss + feature_transform_regularizer(trans_feat) * 0.001
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {loss.item():.6f} active {frac.item():.2f}")
