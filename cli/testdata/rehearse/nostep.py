import torch

net = torch.nn.Linear(4, 4).cuda()
with torch.no_grad():
    net(torch.randn(2, 4, device="cuda"))
