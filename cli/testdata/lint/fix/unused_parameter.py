"""A parameter without a gradient in some steps: zeros still decay it and keep its momentum, None
does not. fixes: 0"""
import torch
from torch import nn

torch.manual_seed(0)
often, seldom = nn.Linear(4, 4), nn.Linear(4, 4)
optimizer = torch.optim.SGD(
    [*often.parameters(), *seldom.parameters()], lr=0.1, momentum=0.9, weight_decay=0.01
)
for i in range(6):
    optimizer.zero_grad(set_to_none=False)
    x = often(torch.randn(2, 4))
    if i % 3 == 0:
        x = seldom(x)
    loss = x.pow(2).mean()
    loss.backward()
    optimizer.step()
print([p.tolist() for p in seldom.parameters()])
