"""SwAV: swapped assignments between crops, prototypes, Sinkhorn and a feature queue (fp16)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
torch.backends.cudnn.benchmark = False
device = "cuda" if torch.cuda.is_available() else "cpu"

if device == "cuda":
    BATCH, BIG, SMALL, N_SMALL, WIDTH, PROTOS, QUEUE, STEPS = 256, 160, 96, 4, 64, 512, 1024, 12
else:
    BATCH, BIG, SMALL, N_SMALL, WIDTH, PROTOS, QUEUE, STEPS = 4, 32, 16, 2, 8, 10, 16, 8
TEMP, EPS = 0.1, 0.05


def conv_bn(cin, cout, k, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, k, stride, k // 2, bias=False), nn.BatchNorm2d(cout))


class Basic(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.a, self.b = conv_bn(cin, cout, 3, stride), conv_bn(cout, cout, 3)
        same = stride == 1 and cin == cout
        self.short = nn.Identity() if same else conv_bn(cin, cout, 1, stride)

    def forward(self, x):
        y = F.relu(self.a(x), inplace=True)
        return F.relu(self.b(y) + self.short(x), inplace=True)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem = nn.Sequential(conv_bn(3, w, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
        stages, cin = [], w
        for i in range(4):
            cout = w * 2**i
            stages += [Basic(cin, cout, 1 if i == 0 else 2), Basic(cout, cout, 1)]
            cin = cout
        self.stages = nn.Sequential(*stages)
        self.project = nn.Sequential(
            nn.Linear(cin, 2 * cin), nn.BatchNorm1d(2 * cin), nn.ReLU(True), nn.Linear(2 * cin, 128)
        )
        self.prototypes = nn.Linear(128, PROTOS, bias=False)

    def forward(self, crops):
        # crops of the same resolution go through the backbone together
        feats, i = [], 0
        while i < len(crops):
            j = i
            while j < len(crops) and crops[j].shape[-1] == crops[i].shape[-1]:
                j += 1
            feats.append(self.stages(self.stem(torch.cat(crops[i:j]))).mean((2, 3)))
            i = j
        z = F.normalize(self.project(torch.cat(feats)), dim=1)
        return z, self.prototypes(z)


@torch.no_grad()
def sinkhorn(scores, iters=3):
    q = torch.exp(scores.float() / EPS).t()
    q /= q.sum()
    k, b = q.shape
    for _ in range(iters):
        q /= q.sum(1, keepdim=True) * k
        q /= q.sum(0, keepdim=True) * b
    return (q * b).t()


def random_crop(images, size):
    n = images.shape[0]
    scale = torch.empty(n).uniform_(0.3, 1.0).to(images.device)
    shift = (torch.rand(n, 2, device=images.device) * 2 - 1) * (1 - scale)[:, None]
    flip = torch.where(torch.rand(n, device=images.device) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=images.device)
    theta[:, 0, 0], theta[:, 1, 1] = scale * flip, scale
    theta[:, :, 2] = shift
    grid = F.affine_grid(theta, (n, 3, size, size), align_corners=False)
    out = F.grid_sample(images, grid, align_corners=False)
    gain = torch.empty(n, 3, 1, 1, device=images.device).uniform_(0.6, 1.4)
    return out * gain


def make_images():
    seeds = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    pick = torch.randint(0, 12, (BATCH,))
    base = F.interpolate(seeds[pick], size=BIG + BIG // 4, mode="bilinear")
    return (base + 0.2 * torch.randn_like(base)).to(device)


model = Encoder().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6, nesterov=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS, eta_min=3e-3)
scaler = torch.amp.GradScaler(device, enabled=device == "cuda", init_scale=2.0**12)
queue = torch.zeros(2, 0, 128, device=device)

for step in range(STEPS):
    with torch.no_grad():
        w = model.prototypes.weight
        w.copy_(F.normalize(w, dim=1))
    images = make_images()
    crops = [random_crop(images, BIG) for _ in range(2)]
    crops += [random_crop(images, SMALL) for _ in range(N_SMALL)]

    with torch.autocast(device, dtype=torch.float16, enabled=device == "cuda"):
        z, scores = model(crops)
    z, scores = z.float(), scores.float()
    loss = 0.0
    for c in range(2):
        with torch.no_grad():
            own = scores[c * BATCH : (c + 1) * BATCH].detach()
            if queue.shape[1] >= QUEUE:  # the queue is used once it is full
                own = torch.cat([queue[c] @ model.prototypes.weight.t(), own])
            target = sinkhorn(own)[-BATCH:]
        others = [v for v in range(2 + N_SMALL) if v != c]
        part = 0.0
        for v in others:
            logp = F.log_softmax(scores[v * BATCH : (v + 1) * BATCH] / TEMP, dim=1)
            part = part - (target * logp).sum(1).mean()
        loss = loss + part / len(others) / 2
    with torch.no_grad():
        fresh = torch.stack([z[:BATCH], z[BATCH : 2 * BATCH]])
        queue = torch.cat([fresh, queue], dim=1)[:, :QUEUE].clone()

    opt.zero_grad()
    scaler.scale(loss).backward()
    if step < 2:  # the prototypes stay put at the start
        model.prototypes.weight.grad = None
    scaler.step(opt)
    scaler.update()
    sched.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
