"""Features are a small vector a sample; how large a prediction is, is not in the file."""

import torch


def neighbours(encoder, memory_loader, test_loader, device="cuda"):
    encoder.eval()
    bank = []
    with torch.no_grad():
        for x, _ in memory_loader:
            features = encoder(x.to(device))
            bank.append(features)  # hint: outputs-kept-on-card
        bank = torch.cat(bank)
        for x, _ in test_loader:
            yield (encoder(x.to(device)) @ bank.t()).topk(20)


def embeddings_for_plot(encoder, loader, device="cuda"):
    encoder.eval()
    embeddings = []
    with torch.no_grad():
        for x, _ in loader:
            embeddings.append(encoder(x.to(device)))  # hint: outputs-kept-on-card
    return torch.cat(embeddings).cpu().numpy()


def predictions(net, loader, device="cuda"):
    net.eval()
    logits = []
    with torch.no_grad():
        for x, _ in loader:
            out = net(x.to(device))
            logits.append(out)  # hint: outputs-kept-on-card
    return torch.cat(logits)
