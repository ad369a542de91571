"""3D U-Net for organs with deep supervision: a list of outputs, dice plus cross entropy, instance
norm, a generator of patches, polynomial rate, sliding window evaluation.
"""

# tiny: --patch 16 --base 4 --batch 2
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def block(i, o):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, padding=1),
        nn.InstanceNorm3d(o, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(o, o, 3, padding=1),
        nn.InstanceNorm3d(o, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet3D(nn.Module):
    def __init__(self, base, classes):
        super().__init__()
        w = [base, base * 2, base * 4, base * 8]
        self.enc = nn.ModuleList([block(1 if i == 0 else w[i - 1], w[i]) for i in range(4)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose3d(w[i + 1], w[i], 2, 2) for i in reversed(range(3))]
        )
        self.dec = nn.ModuleList([block(w[i] * 2, w[i]) for i in reversed(range(3))])
        self.heads = nn.ModuleList([nn.Conv3d(w[i], classes, 1) for i in reversed(range(3))])
        self.deep_supervision = True

    def forward(self, x):
        skips, outs = [], []
        for i, e in enumerate(self.enc):
            x = e(x if i == 0 else F.max_pool3d(x, 2))
            skips.append(x)
        skips.pop()
        for up, dec, head in zip(self.up, self.dec, self.heads):
            x = dec(torch.cat([up(x), skips.pop()], 1))
            outs.append(head(x))
        return outs[::-1] if self.deep_supervision else outs[-1]


class DC_and_CE_loss(nn.Module):
    def __init__(self, smooth=1e-5):
        super().__init__()
        self.smooth = smooth

    def forward(self, x, y):
        p = x.softmax(1)
        onehot = torch.zeros_like(p).scatter_(1, y, 1)
        axes = (0, 2, 3, 4)
        tp, fp, fn = (
            (p * onehot).sum(axes),
            (p * (1 - onehot)).sum(axes),
            ((1 - p) * onehot).sum(axes),
        )
        dc = (2 * tp + self.smooth) / (2 * tp + fp + fn + self.smooth)
        return F.cross_entropy(x, y[:, 0]) - dc[1:].mean() + 1


class PatchGenerator:
    def __init__(self, patch, batch, seed):
        self.rng, self.patch, self.batch = np.random.RandomState(seed), patch, batch

    def __next__(self):
        x = self.rng.randn(self.batch, 1, self.patch, self.patch, self.patch).astype(np.float32)
        y = (x > 0.5).astype(np.int64) + (x > 1.5)
        return {
            "data": torch.from_numpy(x),
            "target": [torch.from_numpy(y[:, :, ::s, ::s, ::s].copy()) for s in (1, 2, 4)],
        }


class Trainer:
    def __init__(self, args):
        self.args, self.device = args, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(123)
        self.network = UNet3D(args.base, 3).to(self.device)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), args.lr, momentum=0.99, nesterov=True, weight_decay=3e-5
        )
        self.grad_scaler = torch.amp.GradScaler("cuda") if args.amp else None
        self.loss, self.gen = DC_and_CE_loss(), PatchGenerator(args.patch, args.batch, 0)

    def train_step(self, batch):
        data = batch["data"].to(self.device, non_blocking=True)
        target = [t.to(self.device, non_blocking=True) for t in batch["target"]]
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, enabled=self.grad_scaler is not None):
            output = self.network(data)
            l = sum(w * self.loss(o, t) for w, o, t in zip((4 / 7, 2 / 7, 1 / 7), output, target))
        if self.grad_scaler is not None:
            self.grad_scaler.scale(l).backward()
            self.grad_scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 12)
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
        else:
            l.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 12)
            self.optimizer.step()
        return l.detach().cpu().numpy()

    @torch.no_grad()
    def predict_sliding_window(self, volume):
        self.network.eval()
        self.network.deep_supervision = False
        p, out = self.args.patch, torch.zeros(3, *volume.shape[2:])
        for z in range(0, volume.shape[2] - p + 1, p // 2):
            out[:, z : z + p, :p, :p] += self.network(
                volume[:, :, z : z + p, :p, :p].to(self.device)
            )[0].cpu()
        self.network.train()
        self.network.deep_supervision = True
        return out.argmax(0)

    def run_training(self, steps=20):
        for i in range(steps):
            for g in self.optimizer.param_groups:
                g["lr"] = self.args.lr * (1 - i / steps) ** 0.9
            l = self.train_step(next(self.gen))
            print("step", i, "loss", np.round(l, decimals=7), flush=True)
            if i == 9:
                seg = self.predict_sliding_window(
                    torch.randn(1, 1, 2 * self.args.patch, self.args.patch, self.args.patch)
                )
                print("foreground voxels", int((seg > 0).sum()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--patch", type=int, default=96)
    parser.add_argument("--base", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--amp", action="store_true")
    Trainer(parser.parse_args()).run_training()
