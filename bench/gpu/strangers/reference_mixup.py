# torchvision reference style: mixup targets as probabilities, label smoothing, model EMA, warm-up +
# cosine (SequentialLR), norm weight decay groups, fp32 AMP switch, MetricLogger. tiny: --model
# swin_mini --batch-size 4 --size 32 --steps 4 --device cpu
import argparse
import collections

import torch
import torch.nn as nn
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="swin_t")
parser.add_argument("--batch-size", type=int, default=48)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--device", default="cuda")
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)


class SmoothedValue:
    def __init__(self):
        self.deque = collections.deque(maxlen=20)

    def update(self, value):
        self.deque.append(value)


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay):
        super().__init__(
            model,
            args.device,
            lambda avg, new, n: decay * avg + (1 - decay) * new,
            use_buffers=True,
        )


def mixup(batch, target, classes, g):
    lam = float(torch.rand(1, generator=g)) * 0.5 + 0.5
    target = nn.functional.one_hot(target, classes).float()
    return batch * lam + batch.roll(1, 0) * (1 - lam), target * lam + target.roll(1, 0) * (1 - lam)


def accuracy(output, target, topk=(1,)):
    with torch.inference_mode():
        target = target.max(dim=1)[1]
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target[None])
        return [
            correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk
        ]


def train_one_epoch(model, criterion, optimizer, scheduler, loader, ema, scaler):
    model.train()
    meters = collections.defaultdict(SmoothedValue)
    for i, (image, target) in enumerate(loader):
        image, target = image.to(args.device), target.to(args.device)
        with torch.amp.autocast(args.device, enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        scheduler.step()
        if i % 4 == 0:
            ema.update_parameters(model)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        meters["loss"].update(loss.item())
        meters["acc1"].update(acc1.item())
        print("step %d loss %.9g acc %.3f" % (i, loss.item(), acc5.item()), flush=True)


if args.model == "swin_mini":
    model = torchvision.models.SwinTransformer(
        [4, 4], 16, [1, 1], [2, 2], [4, 4], stochastic_depth_prob=0.0, num_classes=50
    )
else:
    model = torchvision.models.SwinTransformer(
        [4, 4], 96, [2, 2, 6, 2], [3, 6, 12, 24], [7, 7], stochastic_depth_prob=0.0, num_classes=50
    )
model.to(args.device)
groups = torchvision.ops._utils.split_normalization_params(model)
optimizer = torch.optim.AdamW(
    [{"params": p, "weight_decay": w} for p, w in zip(groups, (0.0, 0.05)) if p], lr=1e-4
)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
    ],
    [5],
)
g = torch.Generator().manual_seed(1)
loader = [
    mixup(
        torch.randn(args.batch_size, 3, args.size, args.size, generator=g),
        torch.randint(0, 50, (args.batch_size,), generator=g),
        50,
        g,
    )
    for _ in range(args.steps)
]
train_one_epoch(
    model,
    nn.CrossEntropyLoss(label_smoothing=0.1),
    optimizer,
    scheduler,
    loader,
    ExponentialMovingAverage(model, 0.99),
    torch.amp.GradScaler(args.device) if args.amp else None,
)
