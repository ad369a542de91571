"""Several forward passes that one no_grad mends are one finding."""

import torch


def caption(encoder, decoder, loader, steps):
    encoder.eval()
    decoder.eval()
    for image in loader:
        code = encoder(image.cuda())  # expect: eval-without-no-grad
        for _ in range(steps):
            code = decoder(code)
        print(code.argmax())


def train(model, loader, val_loader, test_loader, optimizer, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    for x, y in val_loader:
        out = model(x)  # expect: eval-without-no-grad
        print(criterion(out, y).item(), model(x + 1).mean().item())
    for x, y in test_loader:
        out = model(x)  # expect: eval-without-no-grad
        print(criterion(out, y).item())
