"""Semi-supervised segmentation: mean teacher with LR-ASPP MobileNetV3, fp32.

Half of a batch has masks, the other half only has to agree with the EMA teacher.
"""

import copy
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import optim
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

cfg = {
    "device": "cuda" if torch.cuda.is_available() else "cpu",
    "classes": 6,
    "seed": 7,
    "ema": 0.97,
    "lr": 0.02,
}
if cfg["device"] == "cuda":
    cfg.update(labelled=12, unlabelled=12, side=512, epochs=2, iters=6)
else:
    cfg.update(labelled=2, unlabelled=2, side=64, epochs=2, iters=2)


def sample(n, gen):
    """Smooth random fields; the class is the quantised first channel."""
    s = cfg["side"]
    low = torch.randn(n, 3, 8, 8, generator=gen)
    x = F.interpolate(low, size=(s, s), mode="bicubic", align_corners=False)
    y = ((torch.tanh(x[:, 0]) + 1) / 2 * cfg["classes"]).long().clamp(0, cfg["classes"] - 1)
    x = x + 0.2 * torch.randn(x.shape, generator=gen)
    return x.to(cfg["device"]), y.to(cfg["device"])


@torch.no_grad()
def update_teacher(teacher, student, decay):
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.lerp_(s, 1 - decay)
    for t, s in zip(teacher.buffers(), student.buffers(), strict=True):
        t.copy_(s)


@torch.no_grad()
def miou(model, gen):
    model.eval()
    x, y = sample(cfg["labelled"], gen)
    pred = model(x)["out"].argmax(1)
    scores = []
    for c in range(cfg["classes"]):
        union = ((pred == c) | (y == c)).sum()
        if union > 0:
            scores.append((((pred == c) & (y == c)).sum() / union).item())
    model.train()
    return sum(scores) / len(scores)


def main():
    torch.manual_seed(cfg["seed"])
    student = lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=cfg["classes"]
    ).to(cfg["device"])
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = optim.SGD(student.parameters(), lr=cfg["lr"], momentum=0.9, nesterov=True)
    total = cfg["epochs"] * cfg["iters"]
    poly = optim.lr_scheduler.PolynomialLR(opt, total_iters=total, power=0.9)
    gen = torch.Generator().manual_seed(cfg["seed"])
    n_lab = cfg["labelled"]
    it = 0
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(cfg["epochs"]):
            for _ in range(cfg["iters"]):
                x, y = sample(n_lab + cfg["unlabelled"], gen)
                with torch.no_grad():
                    soft = teacher(x + 0.1 * torch.randn_like(x))["out"].softmax(1)
                logits = student(x + 0.1 * torch.randn_like(x))["out"]
                sup = F.cross_entropy(logits[:n_lab], y[:n_lab])
                cons = F.mse_loss(logits.softmax(1), soft)
                ramp = math.exp(-5 * (1 - min(1.0, it / (0.5 * total))) ** 2)
                loss = sup + 10.0 * ramp * cons
                opt.zero_grad()
                loss.backward()
                opt.step()
                poly.step()
                update_teacher(teacher, student, min(cfg["ema"], 1 - 1 / (it + 2)))
                it += 1
                print(f"it {it} loss {loss.item():.6f} consistency {cons.item():.6f}", flush=True)
            score = miou(teacher, torch.Generator().manual_seed(99))
            path = os.path.join(folder, f"epoch{epoch}.pt")
            torch.save({"student": student.state_dict(), "opt": opt.state_dict()}, path)
            print(f"epoch {epoch} teacher mIoU {score:.4f}", flush=True)


if __name__ == "__main__":
    main()
