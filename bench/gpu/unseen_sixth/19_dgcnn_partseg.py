#!/usr/bin/env python
# DGCNN part segmentation on synthetic shapes; mIoU per shape; SGD as in the paper code
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()


class IOStream:
    def __init__(self, path):
        self.f = open(path, "a")

    def cprint(self, text):
        print(text, flush=True)
        self.f.write(text + "\n")
        self.f.flush()

    def close(self):
        self.f.close()


class ShapePart(Dataset):
    """cylinders, boxes and spheres stacked on each other; a point's part = primitive it lies on"""

    def __init__(self, n, num_points, partition):
        self.n, self.num_points, self.partition = n, num_points, partition
        self.base = 0 if partition == "train" else 50000

    def __len__(self):
        return self.n

    def __getitem__(self, item):
        rng = np.random.RandomState(self.base + item)
        cls = rng.randint(0, 4)
        part = rng.randint(0, 3, self.num_points)
        u, v = rng.rand(self.num_points) * 2 * np.pi, rng.rand(self.num_points) * 2 - 1
        r = np.where(part == 0, 1.0, np.where(part == 1, np.sqrt(1 - v**2), 0.4 + 0.1 * cls))
        pts = np.stack([r * np.cos(u), r * np.sin(u), v + 2.0 * part], 1)
        pts = pts - pts.mean(0)
        pts = pts / np.abs(pts).max() + np.clip(0.01 * rng.randn(self.num_points, 3), -0.05, 0.05)
        if self.partition == "train":
            pts = pts * rng.uniform(2.0 / 3, 3.0 / 2, 3) + rng.uniform(-0.2, 0.2, 3)
        return pts.astype("float32"), cls, (cls * 3 + part).astype("int64")


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x**2, dim=1, keepdim=True)
    pairwise_distance = -xx - inner - xx.transpose(2, 1)
    return pairwise_distance.topk(k=k, dim=-1)[1]


def get_graph_feature(x, k):
    B, C, N = x.size()
    idx = knn(x.detach(), k)
    idx = (idx + torch.arange(B, device=x.device).view(-1, 1, 1) * N).view(-1)
    x = x.transpose(2, 1).contiguous()
    feature = x.view(B * N, -1)[idx, :].view(B, N, k, C)
    x = x.view(B, N, 1, C).repeat(1, 1, k, 1)
    return torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()


def cbl(conv, bn, cin, cout):
    return nn.Sequential(
        conv(cin, cout, kernel_size=1, bias=False), bn(cout), nn.LeakyReLU(negative_slope=0.2)
    )


class DGCNN_partseg(nn.Module):
    def __init__(self, args, seg_num):
        super().__init__()
        self.k, w, e = args.k, args.width, args.emb_dims
        c2, c1 = (
            (lambda i, o: cbl(nn.Conv2d, nn.BatchNorm2d, i, o)),
            (lambda i, o: cbl(nn.Conv1d, nn.BatchNorm1d, i, o)),
        )
        self.conv1, self.conv2 = c2(6, w), c2(w, w)
        self.conv3, self.conv4 = c2(2 * w, w), c2(w, w)
        self.conv5 = c2(2 * w, w)
        self.conv6 = c1(3 * w, e)
        self.conv7 = c1(4, w)
        self.conv8, self.conv9 = c1(e + w + 3 * w, 4 * w), c1(4 * w, 2 * w)
        self.conv10 = nn.Conv1d(2 * w, seg_num, kernel_size=1)

    def forward(self, x, l):
        x1 = self.conv2(self.conv1(get_graph_feature(x, self.k))).max(dim=-1)[0]
        x2 = self.conv4(self.conv3(get_graph_feature(x1, self.k))).max(dim=-1)[0]
        x3 = self.conv5(get_graph_feature(x2, self.k)).max(dim=-1)[0]
        g = self.conv6(torch.cat((x1, x2, x3), dim=1)).max(dim=-1, keepdim=True)[0]
        g = torch.cat((g, self.conv7(l.unsqueeze(-1))), dim=1).repeat(1, 1, x.size(2))
        return self.conv10(self.conv9(self.conv8(torch.cat((g, x1, x2, x3), dim=1))))


def cal_loss(pred, gold, eps=0.2):
    n_class = pred.size(1)
    one_hot = torch.zeros_like(pred).scatter(1, gold.view(-1, 1), 1)
    one_hot = one_hot * (1 - eps) + (1 - one_hot) * eps / (n_class - 1)
    return -(one_hot * F.log_softmax(pred, dim=1)).sum(dim=1).mean()


def calculate_shape_IoU(pred, seg, cls):
    ious = []
    for p, s, c in zip(pred, seg, cls):
        parts = range(3 * c, 3 * c + 3)
        ious.append(
            np.mean(
                [((p == k) & (s == k)).sum() / max(1, ((p == k) | (s == k)).sum()) for k in parts]
            )
        )
    return float(np.mean(ious))


def run(args, io):
    device = torch.device("cuda" if CUDA else "cpu")
    seg_num = 12
    train_loader = DataLoader(
        ShapePart(args.batch_size * args.iters, args.num_points, "train"),
        drop_last=True,
        batch_size=args.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    test_loader = DataLoader(
        ShapePart(args.test_batch_size, args.num_points, "test"), batch_size=args.test_batch_size
    )
    model = DGCNN_partseg(args, seg_num).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs, eta_min=1e-3)
    best = 0
    for epoch in range(args.epochs):
        for loader in (train_loader, test_loader):
            training = loader is train_loader
            model.train(training)
            preds, segs, labels = [], [], []
            for data, label, seg in loader:
                onehot = F.one_hot(label, 4).float().to(device)
                data, seg_d = data.to(device).permute(0, 2, 1), seg.to(device)
                with torch.set_grad_enabled(training):
                    logits = model(data, onehot).permute(0, 2, 1).contiguous()
                    loss = cal_loss(logits.view(-1, seg_num), seg_d.view(-1))
                if training:
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                    io.cprint("Train %d, loss %.8f" % (epoch, loss.item()))
                preds.append(logits.argmax(2).cpu().numpy())
                segs.append(seg.numpy())
                labels.append(label.numpy())
            iou = calculate_shape_IoU(
                np.concatenate(preds), np.concatenate(segs), np.concatenate(labels)
            )
            io.cprint("%s %d, iou: %.6f" % ("Train" if training else "Test", epoch, iou))
        scheduler.step()
        if iou >= best:
            best = iou
            torch.save(model.state_dict(), os.path.join(args.out, "model.t7"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Point Cloud Part Segmentation")
    parser.add_argument("--batch_size", type=int, default=16 if CUDA else 2)
    parser.add_argument("--test_batch_size", type=int, default=8 if CUDA else 2)
    parser.add_argument("--iters", type=int, default=4 if CUDA else 2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--num_points", type=int, default=2048 if CUDA else 64)
    parser.add_argument("--k", type=int, default=32 if CUDA else 4)
    parser.add_argument("--width", type=int, default=64 if CUDA else 8)
    parser.add_argument("--emb_dims", type=int, default=1024 if CUDA else 16)
    args = parser.parse_args()
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as args.out:
        io = IOStream(os.path.join(args.out, "run.log"))
        run(args, io)
        io.close()
