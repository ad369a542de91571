import torch

net = torch.nn.Linear(4, 4).cuda()
net(torch.randn(2, 5, device="cuda"))
