import torch

net = torch.nn.Linear(8, 1).cuda()
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in batches:
    with torch.autocast("cuda"):
        loss = (net(x) - y).square().mean()
    scaler.scale(loss).backward()
    scaler.step(opt)  # expect: gradients-never-cleared
    scaler.update()
