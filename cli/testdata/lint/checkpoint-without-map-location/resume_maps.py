import torch
import torch.nn.functional as F



def resume(model, optimizer, path, rank):
    checkpoint = torch.load(path)  # expect: checkpoint-without-map-location
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"]


def main(rank, model, loader):
    torch.cuda.set_device(rank)
    model = torch.nn.parallel.DistributedDataParallel(model.cuda(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    epoch = resume(model, optimizer, "last.pt", rank)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
