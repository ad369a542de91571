import torch, torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 10)
        self.last = None

    def forward(self, x):
        h = self.fc(x)
        self.last = h  # hint: module-keeps-tensors
        return h.relu()


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    loss = (net(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
