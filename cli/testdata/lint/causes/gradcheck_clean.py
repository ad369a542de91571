import torch
from mylib import MyFunction

x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
assert torch.autograd.gradcheck(MyFunction.apply, (x,))
