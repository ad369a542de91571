"""Image classification in the manner of torchvision's references: MetricLogger, EMA, label
smoothing, norm parameters without decay, RA sampler left out.
"""

# tiny: --model resnet18 --batch-size 4 --crop 32
import argparse
import datetime
import time
from collections import defaultdict, deque

import torch
import torchvision
from torch import nn


class SmoothedValue:
    def __init__(self, window_size=20, fmt="{median:.4f} ({global_avg:.4f})"):
        self.deque, self.total, self.count, self.fmt = deque(maxlen=window_size), 0.0, 0, fmt

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    def __str__(self):
        d = torch.tensor(list(self.deque))
        return self.fmt.format(
            median=d.median().item(), global_avg=self.total / self.count, value=self.deque[-1]
        )


class MetricLogger:
    def __init__(self, delimiter="  "):
        self.meters, self.delimiter = defaultdict(SmoothedValue), delimiter

    def update(self, **kwargs):
        for k, v in kwargs.items():
            self.meters[k].update(v.item() if isinstance(v, torch.Tensor) else v)

    def __str__(self):
        return self.delimiter.join(f"{name}: {meter}" for name, meter in self.meters.items())

    def log_every(self, iterable, print_freq, header):
        start, n = time.time(), 0
        for obj in iterable:
            yield obj
            if n % print_freq == 0:
                print(f"{header} [{n}/{len(iterable)}] {self}")
            n += 1
        print(f"{header} Total time: {datetime.timedelta(seconds=int(time.time() - start))}")


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay, device="cpu"):
        def ema_avg(avg_model_param, model_param, num_averaged):
            return decay * avg_model_param + (1 - decay) * model_param

        super().__init__(model, device, ema_avg, use_buffers=True)


def set_weight_decay(model, weight_decay, norm_weight_decay):
    norm = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
    groups = {"other": [], "norm": []}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            groups["norm" if isinstance(module, norm) else "other"].append(p)
    return [
        {"params": groups["other"], "weight_decay": weight_decay},
        {"params": groups["norm"], "weight_decay": norm_weight_decay},
    ]


def accuracy(output, target, topk=(1,)):
    with torch.inference_mode():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t() == target[None]
        return [
            correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk
        ]


def train_one_epoch(
    model, criterion, optimizer, data_loader, device, epoch, args, model_ema=None, scaler=None
):
    model.train()
    metric_logger = MetricLogger()
    for i, (image, target) in enumerate(
        metric_logger.log_every(data_loader, args.print_freq, f"Epoch: [{epoch}]")
    ):
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast(device.type, enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if args.clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            optimizer.step()
        if model_ema and i % 4 == 0:
            model_ema.update_parameters(model)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        metric_logger.update(loss=loss.item(), acc1=acc1, acc5=acc5)
        print(f"step {epoch * len(data_loader) + i} loss {loss.item():.6f}", flush=True)


def evaluate(model, criterion, data_loader, device):
    model.eval()
    metric_logger = MetricLogger()
    with torch.inference_mode():
        for image, target in metric_logger.log_every(data_loader, 100, "Test: "):
            image, target = (
                image.to(device, non_blocking=True),
                target.to(device, non_blocking=True),
            )
            output = model(image)
            metric_logger.update(loss=criterion(output, target), acc1=accuracy(output, target)[0])


def main(args):
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = (3, args.crop, args.crop)
    dataset = torchvision.datasets.FakeData(
        10 * args.batch_size,
        size,
        100,
        torchvision.transforms.Compose(
            [
                torchvision.transforms.ToTensor(),
                torchvision.transforms.Normalize([0.5] * 3, [0.25] * 3),
            ]
        ),
    )
    data_loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=torch.utils.data.RandomSampler(dataset),
        pin_memory=torch.cuda.is_available(),
    )
    data_loader_test = torch.utils.data.DataLoader(
        torch.utils.data.Subset(dataset, range(args.batch_size)), batch_size=args.batch_size
    )
    model = torchvision.models.get_model(args.model, weights=None, num_classes=100).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    optimizer = torch.optim.SGD(set_weight_decay(model, 1e-4, 0.0), lr=args.lr, momentum=0.9)
    main_lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1)
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warmup, main_lr], milestones=[1]
    )
    scaler = torch.amp.GradScaler() if args.amp else None
    model_ema = ExponentialMovingAverage(model, 0.99, device)
    for epoch in range(args.epochs):
        train_one_epoch(
            model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler
        )
        lr_scheduler.step()
        evaluate(model, criterion, data_loader_test, device)
        evaluate(model_ema, criterion, data_loader_test, device)
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
                "args": args,
            },
            "checkpoint.pth",
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="regnet_y_1_6gf")
    parser.add_argument("-b", "--batch-size", default=64, type=int)
    parser.add_argument("--crop", default=176, type=int)
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--lr", default=0.01, type=float)
    parser.add_argument("--label-smoothing", default=0.1, type=float)
    parser.add_argument("--clip-grad-norm", default=1.0, type=float)
    parser.add_argument("--print-freq", default=10, type=int)
    parser.add_argument("--amp", action="store_true")
    main(parser.parse_args())
