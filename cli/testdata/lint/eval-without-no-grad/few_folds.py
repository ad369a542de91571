"""As many figures as there are folds, and an evaluation that never sees a card."""

import matplotlib.pyplot as plt
import torch
from sklearn.model_selection import KFold

device = torch.device("cpu")


def plot_history(history, name):
    plt.figure()  # hint: figures-not-closed
    plt.plot(history)
    plt.savefig(name)


def crossed(build, x, y):
    for n, (train, test) in enumerate(KFold(5).split(x)):
        model = build()
        history = model.fit(x[train], y[train])
        plot_history(history, "fold%d.png" % n)


def tagged(model, test_loader):
    model.eval()
    for x, y in test_loader:
        tags = model(x.to(device)).argmax(-1)  # hint: eval-without-no-grad
        print((tags == y).float().mean().item())
