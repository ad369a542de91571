"""A helper of both phases: no_grad belongs around the call that evaluates."""

import torch
import torch.nn.functional as F


def embed(encoder, head, x):
    y = encoder(x.flatten(1))
    return head(y)


def run(encoder, head, train_loader, test_loader):
    optimizer = torch.optim.Adam(encoder.parameters())
    for _ in range(50):
        encoder.train()
        head.train()
        for x, y in train_loader:
            loss = F.cross_entropy(embed(encoder, head, x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        encoder.eval()
        head.eval()
        right = 0
        for x, y in test_loader:
            out = embed(encoder, head, x.cuda())  # expect: eval-without-no-grad
            right += (out.argmax(1).cpu() == y).sum().item()
        print(right)
