import torch
from torch import nn


def latest(folder):
    return torch.load(folder + "/last.pt")


class Job:
    def __init__(self, folder, device):
        self.model = nn.TransformerEncoder(nn.TransformerEncoderLayer(1024, 16), 24).to(device)
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.state = torch.load(folder + "/last.pt", map_location=device)  # expect: checkpoint-kept
        self.model.load_state_dict(self.state["model"])
        self.opt.load_state_dict(self.state["opt"])

    def train(self, loader):
        for x, y in loader:
            loss = (self.model(x.cuda()) - y.cuda()).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


Job("runs/a", "cuda").train([])


class JobClean:
    def __init__(self, folder, device):
        self.model = nn.TransformerEncoder(nn.TransformerEncoderLayer(1024, 16), 24).to(device)
        self.opt = torch.optim.AdamW(self.model.parameters())
        state = torch.load(folder + "/last.pt", map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        del state

    def train(self, loader):
        for x, y in loader:
            loss = (self.model(x.cuda()) - y.cuda()).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


JobClean("runs/a", "cuda").train([])
