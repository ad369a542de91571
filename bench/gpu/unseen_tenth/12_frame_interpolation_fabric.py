"""Video frame interpolation with intermediate flow, privileged teacher, census loss (Fabric)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset

GPU = torch.cuda.is_available()
SIZE, BATCH, STEPS = (256, 40, 12) if GPU else (32, 2, 8)
CHANNELS = (128, 96, 64, 64) if GPU else (8, 8, 8, 8)
SCALES = (4, 2, 1)


class MovingPatterns(Dataset):
    """Three frames: a textured background and a foreground square with their own motions."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        back = F.interpolate(torch.rand(1, 3, 12, 12, generator=g), size=SIZE, mode="bicubic")[0]
        front = F.interpolate(torch.rand(1, 3, 6, 6, generator=g), size=SIZE // 2)[0]
        move = torch.randint(-SIZE // 16, SIZE // 16 + 1, (2, 2), generator=g).tolist()
        at = torch.randint(SIZE // 8, SIZE // 4, (2,), generator=g).tolist()
        frames = []
        for t in range(3):
            frame = torch.roll(back, (move[0][0] * t, move[0][1] * t), (1, 2)).clone()
            y, x = (max(0, at[k] + move[1][k] * t) for k in range(2))
            h, w = frame[:, y : y + SIZE // 2, x : x + SIZE // 2].shape[1:]
            frame[:, y : y + h, x : x + w] = front[:, :h, :w]
            frames.append(frame.clamp(0, 1))
        return torch.stack(frames)


def warp(image, flow):
    b, _, h, w = image.shape
    ys = torch.linspace(-1, 1, h, device=image.device).view(1, h, 1).expand(b, h, w)
    xs = torch.linspace(-1, 1, w, device=image.device).view(1, 1, w).expand(b, h, w)
    flow = flow.float()
    gx = xs + flow[:, 0] * 2 / (w - 1)
    gy = ys + flow[:, 1] * 2 / (h - 1)
    grid = torch.stack([gx, gy], -1)
    return F.grid_sample(image.float(), grid, padding_mode="border", align_corners=True)


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1), nn.PReLU(cout))


class FlowBlock(nn.Module):
    def __init__(self, cin, c):
        super().__init__()
        self.enter = nn.Sequential(conv(cin, c // 2, 2), conv(c // 2, c, 2))
        self.body = nn.Sequential(*(conv(c, c) for _ in range(6)))
        self.leave = nn.ConvTranspose2d(c, 5, 4, 2, 1)

    def forward(self, x, flow, scale):
        if flow is not None:
            x = torch.cat([x, flow / scale], 1)
        x = F.interpolate(x, scale_factor=1.0 / scale, mode="bilinear") if scale != 1 else x
        x = self.enter(x)
        x = self.leave(self.body(x) + x)
        x = F.interpolate(x, scale_factor=2.0 * scale, mode="bilinear")
        return x[:, :4] * scale * 2, x[:, 4:]


class Refine(nn.Module):
    def __init__(self, c=32 if GPU else 4):
        super().__init__()
        self.d1, self.d2 = conv(17, c), nn.Sequential(conv(c, 2 * c, 2), conv(2 * c, 2 * c))
        self.d3 = nn.Sequential(conv(2 * c, 4 * c, 2), conv(4 * c, 4 * c))
        self.u2 = nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1)
        self.u1 = nn.ConvTranspose2d(4 * c, c, 4, 2, 1)
        self.out = nn.Conv2d(2 * c, 3, 3, padding=1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(a)
        c = self.d3(b)
        b = torch.cat([self.u2(c), b], 1)
        return torch.sigmoid(self.out(torch.cat([self.u1(b), a], 1))) * 2 - 1


class IFNet(nn.Module):
    def __init__(self):
        super().__init__()
        first = FlowBlock(6, CHANNELS[0])
        rest = [FlowBlock(13 + 4, c) for c in CHANNELS[1:3]]
        self.blocks = nn.ModuleList([first, *rest])
        self.teacher = FlowBlock(16 + 4, CHANNELS[3])
        self.refine = Refine()

    def forward(self, i0, i1, truth):
        flow, mask, merged = None, None, []
        w0, w1 = i0, i1
        for block, scale in zip(self.blocks, SCALES, strict=True):
            if flow is None:
                flow, mask = block(torch.cat([i0, i1], 1), None, scale)
            else:
                df, dm = block(torch.cat([i0, i1, w0, w1, mask], 1), flow, scale)
                flow, mask = flow + df, mask + dm
            w0, w1 = warp(i0, flow[:, :2]), warp(i1, flow[:, 2:])
            m = mask.float().sigmoid()
            merged.append(w0 * m + w1 * (1 - m))
        df, dm = self.teacher(torch.cat([i0, i1, w0, w1, mask, truth], 1), flow, 1)
        flow_t, mask_t = flow + df, (mask + dm).float().sigmoid()
        teach = warp(i0, flow_t[:, :2]) * mask_t + warp(i1, flow_t[:, 2:]) * (1 - mask_t)
        residual = self.refine(torch.cat([i0, i1, w0, w1, mask, flow], 1))
        final = (merged[-1] + residual.float()).clamp(0, 1)
        return final, merged, teach, flow, flow_t


def census(image, patch=7):
    gray = image.mean(1, keepdim=True)
    around = F.unfold(gray, patch, padding=patch // 2).unflatten(2, gray.shape[2:])
    diff = around - gray
    return diff / (0.81 + diff**2).sqrt()


def census_loss(a, b):
    d = (census(a) - census(b)) ** 2
    return (d / (0.1 + d)).mean()


def main():
    fabric = Fabric(
        accelerator="cuda" if GPU else "cpu",
        devices=1,
        precision="bf16-mixed" if GPU else "32-true",
    )
    fabric.seed_everything(64, verbose=False)
    loader = fabric.setup_dataloaders(DataLoader(MovingPatterns(BATCH * STEPS), BATCH))
    model = IFNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-3)
    model, opt = fabric.setup(model, opt)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=3)
    for step, clip in enumerate(loader):
        i0, truth, i1 = clip.unbind(1)
        final, merged, teach, flow, flow_t = model(i0, i1, truth)
        rebuild = F.l1_loss(final, truth) + census_loss(final, truth)
        taught = F.l1_loss(teach, truth)
        distil = sum(F.l1_loss(m, truth) for m in merged) / 3
        follow = (flow_t.detach() - flow).float().pow(2).sum(1).sqrt().mean()
        loss = rebuild + taught + 0.5 * distil + 0.01 * follow
        opt.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, opt, max_norm=1.0)
        opt.step()
        warm.step()
        fabric.print(f"step {step} loss {loss.item():.6f} taught {taught.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
