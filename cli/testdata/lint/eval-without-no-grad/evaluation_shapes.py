"""Evaluation beside training, outputs that stay on the card, trainers that keep logits."""
import torch
from torch.cuda.amp import autocast
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

device = "cuda"


def fit(model, optimizer, criterion, train_loader, val_loader, x_val, y_val, epochs):
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            out = model(x.to(device))
            loss = criterion(out, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        hits = 0
        for x, y in val_loader:
            out = model(x.to(device))  # expect: eval-without-no-grad
            hits += (out.argmax(1) == y.to(device)).sum()
        val_loss = criterion(model(x_val), y_val).item()  # expect: eval-without-no-grad


def evaluate(model, test_loader):
    count = sum(p.numel() for p in model.parameters())
    seen = []
    for x, y in test_loader:
        seen.append(model(x).argmax(1))  # expect: eval-without-no-grad
    return seen, count


def predict(model, loader):
    model.eval()
    logits, joined = [], torch.zeros(0, device=device)
    with torch.no_grad():
        for x, _ in loader:
            out = model(x.to(device))
            logits.append(out)  # expect: outputs-kept-on-card
            joined = torch.cat([joined, out.softmax(-1)])  # hint: outputs-kept-on-card
    return torch.cat(logits).cpu()


def half(model, loader):
    with torch.no_grad(), autocast():  # hint: autocast-around-loop
        for x, _ in loader:
            model(x.to(device))


def metrics(p):
    return {"accuracy": (p.predictions.argmax(-1) == p.label_ids).mean()}


model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments("out", per_device_train_batch_size=2, eval_strategy="epoch")  # expect: eval-batch-default
trainer = Trainer(model=model, args=args, compute_metrics=metrics)  # expect: trainer-keeps-logits
