import torch
import torch.nn.functional as F



def train(model, loader, optimizer, epochs):
    weights = []
    for epoch in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weights.append([p.clone() for p in model.parameters()])  # expect: model-copies-kept
    return weights
