import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 8)
        self.out = nn.Linear(8, 1)
        self.hidden = None

    def forward(self, x):
        y, hidden = self.rnn(x, self.hidden)
        self.hidden = tuple(h.detach() for h in hidden)
        return self.out(y[-1])


net = Net().cuda()
opt = torch.optim.Adam(net.parameters())
for x, y in []:
    loss = nn.functional.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
