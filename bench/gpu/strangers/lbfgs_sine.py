# Predicting sine waves with LSTM cells in double precision and LBFGS: the closure is evaluated
# several times a step, the whole set is one batch.
# tiny: --waves 5 --length 20 --hidden 6 --device cpu
import argparse

import torch
import torch.nn as nn
from torch import optim

ap = argparse.ArgumentParser()
ap.add_argument("--waves", type=int, default=512)
ap.add_argument("--length", type=int, default=600)
ap.add_argument("--hidden", type=int, default=51)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(0)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, a.hidden)
        self.lstm2 = nn.LSTMCell(a.hidden, a.hidden)
        self.linear = nn.Linear(a.hidden, 1)

    def forward(self, input, future=0):
        outputs = []
        z = lambda: torch.zeros(input.size(0), a.hidden, dtype=torch.double, device=input.device)
        h_t, c_t, h_t2, c_t2 = z(), z(), z(), z()
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


shift = torch.randint(-80, 80, (a.waves, 1), generator=torch.Generator().manual_seed(2))
data = torch.sin((torch.arange(a.length)[None] + shift) / 20.0).double().to(a.device)
seq = Sequence().double().to(a.device)
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
count = 0
for i in range(3):

    def closure():
        global count
        optimizer.zero_grad()
        out = seq(data[3:, :-1])
        loss = criterion(out, data[3:, 1:])
        print("step %d loss %.9g" % (count, loss.item()), flush=True)
        count += 1
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        pred = seq(data[:3, :-1], future=20)
        print("test %.9g" % criterion(pred[:, :-20], data[:3, 1:]).item())
