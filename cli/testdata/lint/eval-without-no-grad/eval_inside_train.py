import torch
from torch import nn


def train(model, train_dl, valid_dl, epochs):
    opt = torch.optim.Adam(model.parameters())
    crit = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        for x, y in train_dl:
            opt.zero_grad()
            crit(model(x.cuda()), y.cuda()).backward()
            opt.step()
        model.eval()
        right = seen = 0
        for x, y in valid_dl:
            guess = model(x.cuda()).argmax(-1)  # expect: eval-without-no-grad
            right += int((guess.cpu() == y).sum())
            seen += len(y)
        print(epoch, right / seen)
