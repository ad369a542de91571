import torch

net = torch.nn.Linear(8, 1).cuda()
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in batches:
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda"):
        loss = (net(x) - y).square().mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
