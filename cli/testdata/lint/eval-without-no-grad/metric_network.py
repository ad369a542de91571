"""The network of a metric switches its own gradients off; another one does not."""

import torch
from metrics import InceptionV3
from torchvision.models import resnet50


def activations(files, block):
    model = InceptionV3([block]).cuda()
    model.eval()
    found = []
    for batch in files:
        found.append(model(batch.cuda())[0].cpu().numpy())
    return found


def features(batches):
    backbone = resnet50().to(torch.device("cuda"))
    backbone.eval()
    found = []
    for batch in batches:
        y = backbone(batch.cuda())  # expect: eval-without-no-grad
        found.append(y.detach().cpu().numpy())
    return found
