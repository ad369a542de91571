import torch
from torch.utils.data import DataLoader, TensorDataset


def main(path, net, epochs):
    device = torch.device("cuda")
    data = torch.load(path, map_location="cpu")  # hint: dataset-read-whole
    images, masks = data["images"], data["masks"]
    loader = DataLoader(TensorDataset(images, masks), batch_size=16, shuffle=True)
    net = net.to(device)
    opt = torch.optim.AdamW(net.parameters(), 1e-4)
    for _ in range(epochs):
        for image, mask in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(net(image.to(device)), mask.to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()
