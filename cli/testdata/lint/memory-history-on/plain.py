import torch
from torch.nn import functional as F

torch.cuda.memory._record_memory_history()  # expect: memory-history-on

net = torch.nn.Linear(512, 10).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x.cuda()), y.cuda()).backward()
        optimizer.step()
    torch.cuda.memory._dump_snapshot("end.pickle")
