import torch
from torch.autograd import gradcheck

net = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def profile_memory(model, inp):
    """find the memory drain"""
    return gradcheck(model, inp, eps=1e-6)  # expect: gradcheck-is-no-profiler


for step in range(100):
    x = torch.randn(2, 3)
    profile_memory(net, x)
    loss = net(x).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
