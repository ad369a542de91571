"""Part segmentation of point clouds with PointNet: shared MLPs, learnt transforms, a global feature
repeated for each point, a regulariser in the outputs.
"""

# tiny: --batch_size 4 --npoint 64 --width 8
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class STN(nn.Module):
    def __init__(self, k, w):
        super().__init__()
        self.k = k
        self.mlp = nn.Sequential(
            nn.Conv1d(k, w, 1),
            nn.GroupNorm(4, w),
            nn.ReLU(),
            nn.Conv1d(w, 2 * w, 1),
            nn.GroupNorm(4, 2 * w),
            nn.ReLU(),
            nn.Conv1d(2 * w, 16 * w, 1),
            nn.ReLU(),
        )
        self.fc = nn.Sequential(nn.Linear(16 * w, 4 * w), nn.ReLU(), nn.Linear(4 * w, k * k))
        nn.init.zeros_(self.fc[-1].weight)
        nn.init.zeros_(self.fc[-1].bias)

    def forward(self, x):
        g = self.mlp(x).max(2)[0]
        return self.fc(g).view(-1, self.k, self.k) + torch.eye(self.k, device=x.device)


class PartSeg(nn.Module):
    def __init__(self, parts, shapes, w):
        super().__init__()
        self.stn, self.fstn = STN(3, w), STN(2 * w, w)
        self.c1, self.c2, self.c3 = (
            nn.Conv1d(3, w, 1),
            nn.Conv1d(w, 2 * w, 1),
            nn.Conv1d(2 * w, 2 * w, 1),
        )
        self.c4, self.c5 = nn.Conv1d(2 * w, 8 * w, 1), nn.Conv1d(8 * w, 32 * w, 1)
        self.head = nn.Sequential(
            nn.Conv1d(32 * w + shapes + 5 * w + 10 * w, 4 * w, 1),
            nn.ReLU(),
            nn.Conv1d(4 * w, 2 * w, 1),
            nn.ReLU(),
            nn.Conv1d(2 * w, parts, 1),
        )

    def forward(self, points, shape):
        b, _, n = points.shape
        trans = self.stn(points)
        x = torch.bmm(points.transpose(2, 1), trans).transpose(2, 1)
        o1 = F.relu(self.c1(x))
        o2 = F.relu(self.c2(o1))
        o3 = F.relu(self.c3(o2))
        trans_feat = self.fstn(o3)
        x = torch.bmm(o3.transpose(2, 1), trans_feat).transpose(2, 1)
        o4 = F.relu(self.c4(x))
        o5 = self.c5(o4)
        g = torch.cat([o5.max(2)[0], shape], 1).unsqueeze(-1).expand(-1, -1, n)
        net = self.head(torch.cat([g, o1, o2, o3, x, o4], 1))
        return F.log_softmax(net.transpose(2, 1), -1), trans_feat


def feature_transform_regularizer(trans):
    eye = torch.eye(trans.size(1), device=trans.device)[None]
    return torch.mean(torch.norm(torch.bmm(trans, trans.transpose(2, 1)) - eye, dim=(1, 2)))


def batches(args, device, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        pts = torch.randn(args.batch_size, args.npoint, 3, generator=g)
        label = torch.randint(0, 16, (args.batch_size,), generator=g)
        target = torch.randint(0, 50, (args.batch_size, args.npoint), generator=g)
        yield (
            pts.transpose(2, 1).to(device),
            F.one_hot(label, 16).float().to(device),
            target.to(device),
        )


def main():
    p = argparse.ArgumentParser("PointNet")
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--npoint", type=int, default=2048)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--learning_rate", type=float, default=1e-3)
    p.add_argument("--mat_diff_loss_scale", type=float, default=1e-3)
    args = p.parse_args()
    torch.manual_seed(4)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classifier = PartSeg(50, 16, args.width).to(device)
    classifier.apply(
        lambda m: nn.init.xavier_normal_(m.weight) if isinstance(m, (nn.Conv1d,)) else None
    )
    optimizer = torch.optim.Adam(classifier.parameters(), lr=args.learning_rate, weight_decay=1e-4)
    data = batches(args, device, 1)
    for step in range(20):
        for group in optimizer.param_groups:
            group["lr"] = max(args.learning_rate * 0.5 ** (step // 10), 1e-5)
        points, shape, target = next(data)
        optimizer.zero_grad()
        classifier = classifier.train()
        seg_pred, trans_feat = classifier(points, shape)
        loss = F.nll_loss(
            seg_pred.contiguous().view(-1, 50), target.view(-1)
        ) + args.mat_diff_loss_scale * feature_transform_regularizer(trans_feat)
        loss.backward()
        optimizer.step()
        correct = (seg_pred.argmax(-1) == target).float().mean().item()
        print(f"step {step} loss {loss.item():.7f} acc {correct:.4f}", flush=True)


if __name__ == "__main__":
    main()
