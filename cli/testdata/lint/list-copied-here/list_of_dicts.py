import json
import os

import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.models import resnet50


class ProductImages(Dataset):
    """12 million product photos with attribute labels."""

    def __init__(self, root, index, transform):
        self.root = root
        self.transform = transform
        self.items = []
        with open(index) as f:
            for line in f:
                row = json.loads(line)
                self.items.append(  # expect: list-copied-here
                    {"path": row["path"], "labels": row["attributes"], "shop": row["shop"]}
                )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        item = self.items[i]
        with Image.open(os.path.join(self.root, item["path"])) as im:
            image = self.transform(im.convert("RGB"))
        return image, torch.tensor(item["labels"], dtype=torch.float32)


def main():
    tf = transforms.Compose(
        [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    )
    data = ProductImages("/data/products", "/data/products/index.jsonl", tf)
    loader = DataLoader(  # expect: workers-copy-python-list
        data, batch_size=256, shuffle=True, num_workers=16, pin_memory=True, persistent_workers=True
    )
    net = resnet50(num_classes=128).cuda().to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(8):
        for step, (x, y) in enumerate(loader):
            x = x.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.binary_cross_entropy_with_logits(
                    net(x), y.cuda(non_blocking=True)
                )
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            if step % 100 == 0:
                print(epoch, step, loss.item())
        torch.save(net.state_dict(), f"attr_{epoch}.pt")


if __name__ == "__main__":
    main()
