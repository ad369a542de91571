import torch
import torch.nn.functional as F



def predict(model, loader, device):
    model.eval()
    everything = []
    with torch.no_grad():
        for x, _ in loader:
            out = model(x.to(device))
            everything.append(out.cpu())
    return torch.cat(everything)
