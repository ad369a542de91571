"""Two LSTM cells unrolled over time series, trained by LBFGS with a closure."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
N, T, H = 160, 240, 51
start = torch.randint(-4 * 20, 4 * 20, (N, 1))
data = torch.sin((torch.arange(T)[None, :] + start).double() / 20)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, H)
        self.lstm2 = nn.LSTMCell(H, H)
        self.linear = nn.Linear(H, 1)

    def forward(self, input, future=0):
        outputs = []
        h, c, h2, c2 = (torch.zeros(input.size(0), H, dtype=torch.double) for _ in range(4))
        for part in input.split(1, dim=1):
            h, c = self.lstm1(part, (h, c))
            h2, c2 = self.lstm2(h, (h2, c2))
            output = self.linear(h2)
            outputs.append(output)
        for _ in range(future):
            h, c = self.lstm1(output, (h, c))
            h2, c2 = self.lstm2(h, (h2, c2))
            output = self.linear(h2)
            outputs.append(output)
        return torch.cat(outputs, dim=1)


x, y = data[3:, :-1], data[3:, 1:]
test_x, test_y = data[:3, :-1], data[:3, 1:]
seq = Sequence().double()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=5)
for i in range(2):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(x), y)
        print("loss: %.12g" % loss.item(), flush=True)
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        pred = seq(test_x, future=50)
        print("test loss: %.12g" % criterion(pred[:, :-50], test_y).item(), flush=True)
