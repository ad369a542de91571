"""Evaluation done right: nothing may be found here."""
import torch
from torch.cuda.amp import autocast
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

device = "cuda"


def fit(model, optimizer, criterion, train_loader, val_loader, epochs):
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            loss = criterion(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in val_loader:
                model(x.to(device))


def predict(model, loader):
    model.eval()
    logits, labels, losses = [], [], []
    with torch.no_grad():
        for x, y in loader:
            with autocast():
                out = model(x.to(device))
            logits.append(out.cpu())
            labels.append(out.argmax(-1))
            losses.append(torch.nn.functional.cross_entropy(out, y))
    return torch.cat(logits)


@torch.inference_mode()
def ensemble(models, x):
    outputs = []
    for model in models:
        outputs.append(model(x))
    return torch.stack(outputs).mean(0)


def attack(model, loader, criterion):
    """Gradients of the input: the graph is wanted."""
    model.eval()
    for x, y in loader:
        x.requires_grad_()
        loss = criterion(model(x), y)
        loss.backward()
        yield x.grad.sign()


def frozen(teacher, student, loader, optimizer):
    """The teacher is in eval mode, and its forward pass is under no_grad."""
    teacher.eval()
    for x, y in loader:
        with torch.no_grad():
            target = teacher(x)
        loss = (student(x) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def fine_tune_with_frozen_norms(model, loader, optimizer):
    """eval() to freeze batch norm while training."""
    model.eval()
    for x, y in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def reduce(logits, labels):
    return logits.argmax(-1)


model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments(
    "out", per_device_train_batch_size=2, per_device_eval_batch_size=2, eval_strategy="epoch"
)
trainer = Trainer(
    model=model, args=args, compute_metrics=print, preprocess_logits_for_metrics=reduce
)
