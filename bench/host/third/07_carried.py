"""A language model of GRU cells: windows of one long text, the state handed on and detached."""

import torch
from torch import nn

torch.manual_seed(6)
torch.set_num_threads(1)
VOCAB, ROWS, WINDOW, HID = 3000, 48, 32, 192


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HID)
        self.lower, self.upper = nn.GRUCell(HID, HID), nn.GRUCell(HID, HID)
        self.decode = nn.Sequential(nn.Linear(HID, HID), nn.Tanh(), nn.Linear(HID, VOCAB))

    def forward(self, ids, state):
        low, high = state
        outs = []
        for word in self.embed(ids):
            low = self.lower(word, low)
            high = self.upper(low, high)
            outs.append(self.decode(high))
        return torch.stack(outs), (low, high)


text = torch.randint(0, VOCAB, (WINDOW * 4 + 1, ROWS))
model, criterion = Cells(), nn.CrossEntropyLoss()
opt = torch.optim.SGD(model.parameters(), 2.0)
state = (torch.zeros(ROWS, HID), torch.zeros(ROWS, HID))
for start in range(0, WINDOW * 4, WINDOW):
    ids, next_ids = text[start : start + WINDOW], text[start + 1 : start + WINDOW + 1]
    state = tuple(s.detach() for s in state)
    out, state = model(ids, state)
    loss = criterion(out.view(-1, VOCAB), next_ids.reshape(-1))
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
    print("at %d loss %.8g" % (start, loss.item()), flush=True)
