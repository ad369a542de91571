"""gradcheck in a script without functions, beside readings of the card."""

import torch
from torch.autograd import gradcheck

model = torch.nn.Linear(10, 2).cuda()
before = torch.cuda.memory_allocated()
gradcheck(model, torch.randn(4, 10, requires_grad=True).cuda())  # expect: gradcheck-is-no-profiler
print(torch.cuda.memory_allocated() - before)
