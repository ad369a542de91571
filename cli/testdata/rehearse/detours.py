"""Operations that have no way of their own on fake tensors: speech losses with lengths on the host, sampling along a flow, and a
head that gets no box. It stops with a sentence where a shape is not as on a card."""
import torch
from torch import nn
from torch.nn import functional as F

flow = nn.Conv2d(3, 2, 3, padding=1).cuda()
speech = nn.Linear(32, 12).cuda()
head = nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.ConvTranspose2d(16, 4, 2, 2)).cuda()
optimizer = torch.optim.SGD([*flow.parameters(), *speech.parameters(), *head.parameters()], lr=0.1)
for _ in range(4):
    image = torch.rand(4, 3, 64, 64, device="cuda")
    moved = F.grid_sample(image, flow(image).permute(0, 2, 3, 1), mode="bilinear", padding_mode="zeros", align_corners=True)
    spoken = speech(torch.rand(50, 4, 32, device="cuda")).log_softmax(-1)
    texts = torch.randint(1, 12, (4, 9), device="cuda")
    loss = F.ctc_loss(spoken, texts, torch.tensor([50, 50, 40, 30]), torch.tensor([9, 9, 8, 7]))
    if moved.shape != image.shape or loss.shape != () or loss.device.type != "cuda":
        raise SystemExit("results are not as on a card")
    boxes = head(torch.zeros(0, 16, 7, 7, device="cuda"))
    (loss + moved.mean() + boxes.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
