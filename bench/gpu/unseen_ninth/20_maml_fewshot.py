"""Few-shot image classification with second-order MAML through torch.func.functional_call."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

torch.manual_seed(600)
device = "cuda" if torch.cuda.is_available() else "cpu"

WAYS, SHOTS, QUERIES = 5, 5, 15
SIZE, FILTERS, INNER, TASKS, STEPS = 84, 96, 5, 4, 12
if device == "cpu":
    SIZE, FILTERS, INNER, TASKS, STEPS = 28, 8, 2, 2, 8


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.BatchNorm2d(cout, track_running_stats=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, FILTERS),
            conv_block(FILTERS, FILTERS),
            conv_block(FILTERS, FILTERS),
            conv_block(FILTERS, FILTERS),
        )
        side = SIZE // 16
        self.classifier = nn.Linear(FILTERS * side * side, WAYS)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class TaskSampler:
    """A class is a random low-frequency pattern; an example is a shifted, noisy copy."""

    def __init__(self, classes=64):
        coarse = torch.randn(classes, 3, 7, 7, device=device)
        self.prototypes = F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")

    def examples(self, classes, count):
        images = self.prototypes[classes].repeat_interleave(count, 0)
        dy, dx = torch.randint(-4, 5, (2,)).tolist()
        images = images.roll((dy, dx), dims=(2, 3))
        labels = torch.arange(WAYS, device=device).repeat_interleave(count)
        return images + 0.8 * torch.randn_like(images), labels

    def __call__(self):
        classes = torch.randperm(len(self.prototypes), device=device)[:WAYS]
        return self.examples(classes, SHOTS), self.examples(classes, QUERIES)


class MAML(nn.Module):
    """Learns the initial weights and one inner learning rate per tensor and step."""

    def __init__(self, net, inner_lr=0.05):
        super().__init__()
        self.net = net
        self.names = [name for name, _ in net.named_parameters()]
        self.log_lr = nn.Parameter(torch.full((INNER, len(self.names)), inner_lr).log())

    def adapt(self, images, labels, second_order):
        params = dict(self.net.named_parameters())
        for k in range(INNER):
            loss = F.cross_entropy(functional_call(self.net, params, (images,)), labels)
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=second_order)
            rates = self.log_lr[k].exp()
            params = {
                name: p - rate * g
                for (name, p), rate, g in zip(params.items(), rates, grads, strict=True)
            }
        return params

    def forward(self, support, query, second_order=True):
        params = self.adapt(*support, second_order)
        logits = functional_call(self.net, params, (query[0],))
        loss = F.cross_entropy(logits, query[1])
        accuracy = (logits.argmax(-1) == query[1]).float().mean()
        return loss, accuracy.item()


def evaluate(model, sampler, tasks):
    scores = []
    for _ in range(tasks):
        support, query = sampler()
        scores.append(model(support, query, second_order=False)[1])
    return sum(scores) / len(scores)


sampler = TaskSampler()
model = MAML(ConvNet()).to(device)
optimizer = torch.optim.Adam(
    [
        {"params": model.net.parameters(), "lr": 1e-3},
        {"params": [model.log_lr], "lr": 1e-2},
    ]
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

for step in range(STEPS):
    optimizer.zero_grad()
    meta_loss = 0.0
    for _ in range(TASKS):
        support, query = sampler()
        loss, _ = model(support, query)
        (loss / TASKS).backward()
        meta_loss += loss.item() / TASKS
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    scheduler.step()
    print(f"step {step} loss {meta_loss:.6f}", flush=True)
    if (step + 1) % 4 == 0:
        print(f"  adapted accuracy {evaluate(model, sampler, 2):.3f}")
