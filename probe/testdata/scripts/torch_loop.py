"""A plain PyTorch loop on the CPU: data loader, dropout, accumulation, evaluation, saving. Prints each loss exactly."""

import io
import sys

import torch

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 30
torch.manual_seed(7)
data = torch.utils.data.TensorDataset(torch.randn(4096, 32), torch.randint(0, 4, (4096,)))
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4))
frozen = torch.nn.Linear(16, 16)
for p in frozen.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
done, accumulate = 0, 2
while done < steps:
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y) / accumulate
        loss.backward()
        if (i + 1) % accumulate:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        done += 1
        print(done, loss.item().hex())
        if done == 10:
            model.eval()
            with torch.no_grad():
                print("eval", model(x).sum().item().hex())
            model.train()
            torch.save(model.state_dict(), io.BytesIO())
        if done >= steps:
            break
