"""Calls that are no forward pass of a dataset: a tokenizer, a heatmap, a picture that is shown."""

import cv2
import torch
from matplotlib import pyplot as plt
from transformers import AutoModel

from maps import GradCAM
from unsloth import FastLanguageModel


def loaded(name):
    model, tokenizer = FastLanguageModel.from_pretrained(name)
    model.eval()
    return model, tokenizer


def states(texts, size):
    model, tokenizer = loaded("llama")
    found = []
    for i in range(0, len(texts), size):
        inputs = tokenizer(texts[i : i + size], return_tensors="pt", padding=True).to("cuda")
        with torch.no_grad():
            found.append(model(**inputs).last_hidden_state.mean(1).cpu())
    return torch.cat(found)


def states_with_grad(loader):
    model = AutoModel.from_pretrained("bert-base-uncased").cuda().eval()
    found = []
    for batch in loader:
        out = model(**batch)  # expect: eval-without-no-grad
        found.append(out.last_hidden_state.mean(1).detach().cpu())
    return torch.cat(found)


def heatmaps(net, layer, image, classes):
    net.eval()
    maps = {}
    for c in classes:
        cam = GradCAM(net, layer)
        net.zero_grad()
        net(image.clone())
        maps[c] = cam.heatmap(c)
    return maps


def shown(net, files):
    net.eval()
    figure, axes = plt.subplots(1, 3)
    for i, name in enumerate(files):
        image = torch.from_numpy(cv2.imread(name, 0)).float()[None]
        guess = net(image).argmax(1)  # hint: eval-without-no-grad
        axes[i].imshow(image[0])
        axes[i].set_title(str(guess.item()))


def camera(net):
    net.eval()
    device = cv2.VideoCapture(0)
    while True:
        _, frame = device.read()
        guess = net(torch.from_numpy(frame).float()[None])  # hint: eval-without-no-grad
        cv2.imshow(str(guess.argmax().item()), frame)
        if cv2.waitKey(1) == ord("q"):
            break


def tested(net, loader, figure):
    net.eval()
    right = 0
    for i, (x, y) in enumerate(loader):
        out = net(x.cuda())  # expect: eval-without-no-grad
        right += (out.argmax(1).cpu() == y).sum().item()
        if i == 0:
            plt.imshow(x[0].permute(1, 2, 0))
    return right
