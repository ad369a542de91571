import torch

model = torch.nn.Linear(10, 2).double().cuda()
for epoch in range(10):
    x = torch.randn(4, 10, dtype=torch.double, requires_grad=True).cuda()
    before = torch.cuda.memory_allocated()
    torch.autograd.gradcheck(model, (x,))  # expect: gradcheck-is-no-profiler
    print("memory", torch.cuda.memory_allocated() - before)
