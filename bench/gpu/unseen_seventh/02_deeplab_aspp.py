# DeepLabV3+ style street-scene segmentation. Poly LR, aux loss, mIoU evaluation every epoch.
import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
DEV = "cuda" if CUDA else "cpu"
BATCH = 8 if CUDA else 2
CROP = (512, 512) if CUDA else (64, 64)
WIDTH = 64 if CUDA else 8
CLASSES = 19
IGNORE = 255
EPOCHS = 2
ITERS = 5 if CUDA else 2
BASE_LR = 0.01

torch.manual_seed(7)


def cbr(cin, cout, k=3, s=1, d=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, k, s, padding=d * (k // 2), dilation=d, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    def __init__(self, cin, cout, stride=1, dilation=1):
        super().__init__()
        self.a = cbr(cin, cout, 3, stride, dilation)
        self.b = nn.Sequential(
            nn.Conv2d(cout, cout, 3, padding=dilation, dilation=dilation, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.skip = nn.Identity()
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        return F.relu(self.b(self.a(x)) + self.skip(x))


class ASPP(nn.Module):
    def __init__(self, cin, cout, rates=(6, 12, 18)):
        super().__init__()
        atrous = [cbr(cin, cout, 3, 1, r) for r in rates]
        self.branches = nn.ModuleList([cbr(cin, cout, 1)] + atrous)
        self.image = nn.Conv2d(cin, cout, 1)
        self.project = cbr(cout * (len(rates) + 2), cout, 1)

    def forward(self, x):
        outs = [b(x) for b in self.branches]
        pooled = F.relu(self.image(x.mean((2, 3), keepdim=True)))
        outs.append(pooled.expand(-1, -1, x.size(2), x.size(3)))
        return self.project(torch.cat(outs, 1))


class DeepLab(nn.Module):
    def __init__(self, w, classes):
        super().__init__()
        self.stem = nn.Sequential(cbr(3, w, 3, 2), cbr(w, w))
        self.layer1 = nn.Sequential(Residual(w, w, 2), Residual(w, w))
        self.layer2 = nn.Sequential(Residual(w, 2 * w, 2), Residual(2 * w, 2 * w))
        self.layer3 = nn.Sequential(Residual(2 * w, 4 * w, 1, 2), Residual(4 * w, 4 * w, 1, 2))
        self.layer4 = nn.Sequential(Residual(4 * w, 8 * w, 1, 4), Residual(8 * w, 8 * w, 1, 4))
        self.aspp = ASPP(8 * w, 4 * w)
        self.low = cbr(w, 48, 1)
        self.head = nn.Sequential(
            cbr(4 * w + 48, 4 * w), cbr(4 * w, 4 * w), nn.Conv2d(4 * w, classes, 1)
        )
        self.aux = nn.Sequential(cbr(4 * w, w), nn.Conv2d(w, classes, 1))

    def forward(self, x):
        size = x.shape[-2:]
        low = self.layer1(self.stem(x))
        mid = self.layer3(self.layer2(low))
        y = self.aspp(self.layer4(mid))
        y = F.interpolate(y, size=low.shape[-2:], mode="bilinear", align_corners=False)
        y = self.head(torch.cat([y, self.low(low)], 1))
        up = dict(size=size, mode="bilinear", align_corners=False)
        if self.training:
            return F.interpolate(y, **up), F.interpolate(self.aux(mid), **up)
        return F.interpolate(y, **up)


def fake_scene(gen):
    h, w = CROP
    coarse = torch.randint(0, CLASSES, (BATCH, 1, 8, 8), generator=gen).float()
    mask = F.interpolate(coarse, size=(h, w), mode="nearest").long().squeeze(1)
    img = torch.randn(BATCH, 3, h, w, generator=gen) * 0.5 + mask.unsqueeze(1) / CLASSES
    mask[:, :4] = IGNORE
    return img, mask


model = DeepLab(WIDTH, CLASSES).to(DEV)
head = [p for n, p in model.named_parameters() if n.split(".")[0] in ("aspp", "head", "aux")]
body = [p for n, p in model.named_parameters() if n.split(".")[0] not in ("aspp", "head", "aux")]
opt = torch.optim.SGD(
    [{"params": body, "lr": BASE_LR / 2}, {"params": head, "lr": BASE_LR}],
    momentum=0.9,
    weight_decay=1e-4,
)
total = EPOCHS * ITERS
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: (1 - i / total) ** 0.9)
gen = torch.Generator().manual_seed(99)

it = 0
for epoch in range(EPOCHS):
    model.train()
    for _ in range(ITERS):
        img, mask = (t.to(DEV) for t in fake_scene(gen))
        main_out, aux_out = model(img)
        loss = F.cross_entropy(main_out, mask, ignore_index=IGNORE)
        loss = loss + 0.4 * F.cross_entropy(aux_out, mask, ignore_index=IGNORE)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"epoch {epoch} iter {it} loss {loss.item():.8f}", flush=True)
        it += 1

    model.eval()
    conf = torch.zeros(CLASSES, CLASSES)
    with torch.no_grad():
        img, mask = fake_scene(torch.Generator().manual_seed(5))
        pred = model(img.to(DEV)).argmax(1).cpu()
        keep = mask != IGNORE
        idx = mask[keep] * CLASSES + pred[keep]
        conf += torch.bincount(idx, minlength=CLASSES**2).view(CLASSES, CLASSES)
    iou = conf.diag() / (conf.sum(0) + conf.sum(1) - conf.diag()).clamp(min=1)
    print(f"epoch {epoch} mIoU {iou.mean().item():.4f}")
