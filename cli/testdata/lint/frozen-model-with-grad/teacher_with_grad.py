import torch
import torchvision
from torch import nn

teacher = torchvision.models.resnet50(weights="DEFAULT").cuda().eval()
student = torchvision.models.resnet18().cuda()
opt = torch.optim.SGD(student.parameters(), lr=0.1)


def train(loader):
    for x, y in loader:
        x = x.cuda()
        t = teacher(x)  # expect: frozen-model-with-grad
        s = student(x)
        loss = nn.functional.kl_div(s.log_softmax(-1), t.softmax(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()


def train_clean(loader):
    for x, y in loader:
        x = x.cuda()
        with torch.no_grad():
            t = teacher(x)
        s = student(x)
        loss = nn.functional.kl_div(s.log_softmax(-1), t.softmax(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
