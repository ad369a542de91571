"""Image classification in timm's manner: mixup with soft targets outside the model, EMA of weights,
channels last, warm-up then cosine, gradient clipping, a dispatch of loss functions by flags."""

# tiny: --batch-size 4 --img-size 32 --model mobilenet_v3_small --device cpu
import argparse
import copy
import math

import torch
import torch.nn as nn
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="efficientnet_b0")
parser.add_argument("--batch-size", type=int, default=96)
parser.add_argument("--img-size", type=int, default=224)
parser.add_argument("--mixup", type=float, default=0.8)
parser.add_argument("--smoothing", type=float, default=0.1)
parser.add_argument("--clip-grad", type=float, default=1.0)
parser.add_argument("--device", default="cuda")


class SoftTargetCrossEntropy(nn.Module):
    def forward(self, x, target):
        return torch.sum(-target * torch.log_softmax(x, dim=-1), dim=-1).mean()


def mixup(x, y, lam, classes, smoothing):
    hot = torch.full((len(y), classes), smoothing / classes, device=y.device)
    hot.scatter_(1, y[:, None], 1 - smoothing + smoothing / classes)
    return x * lam + x.flip(0) * (1 - lam), hot * lam + hot.flip(0) * (1 - lam)


def train_one_epoch(args, model, ema, loss_fn, optimizer, rng):
    model.train()
    for i in range(12):
        x = torch.rand(args.batch_size, 3, args.img_size, args.img_size, generator=rng)
        y = torch.randint(0, 100, (args.batch_size,), generator=rng)
        x = x.to(args.device, memory_format=torch.channels_last)
        lam = float(torch.distributions.Beta(args.mixup, args.mixup).sample())
        x, target = mixup(x, y.to(args.device), lam, 100, args.smoothing)
        lr = 0.002 * (i + 1) / 4 if i < 4 else 0.001 * (1 + math.cos(math.pi * (i - 4) / 8))
        for g in optimizer.param_groups:
            g["lr"] = lr
        loss = loss_fn(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        with torch.no_grad():
            for e, p in zip(ema.state_dict().values(), model.state_dict().values()):
                e.copy_(0.99 * e + 0.01 * p)
        print("step %d loss %.9g" % (i, loss.item()), flush=True)


@torch.inference_mode()
def validate(args, model, rng):
    model.eval()
    x = torch.rand(args.batch_size, 3, args.img_size, args.img_size, generator=rng)
    return model(x.to(args.device, memory_format=torch.channels_last)).softmax(1).max().item()


def main():
    args = parser.parse_args()
    torch.manual_seed(42)
    model = torchvision.models.get_model(args.model, weights=None, num_classes=100, dropout=0.0)
    for m in model.modules():
        if isinstance(m, torchvision.ops.StochasticDepth):
            m.p = 0.0
    model = model.to(args.device, memory_format=torch.channels_last)
    ema = copy.deepcopy(model)
    optimizer = torch.optim.RMSprop(model.parameters(), 0.002, 0.9, eps=1e-3, momentum=0.9)
    rng = torch.Generator().manual_seed(0)
    train_one_epoch(args, model, ema, SoftTargetCrossEntropy().to(args.device), optimizer, rng)
    print("ema confidence %.4f" % validate(args, ema, rng))


if __name__ == "__main__":
    main()
