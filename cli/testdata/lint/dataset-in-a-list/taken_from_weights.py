"""Contexts that take the gradients from the weights, a batch picked from a list, and a path that is
set a line above.
"""

import torch
from contexts import no_param_grad, noparamgrad_and_eval, timer
from torch.utils.data import DataLoader

loader = DataLoader(range(10**6), batch_size=64)
path = "stylegan/pretrained/generator.pth"


def test(net, attack):
    net.eval()
    right = 0
    for x, y in loader:
        with noparamgrad_and_eval(net):
            right += (net(attack(x.cuda())).argmax(1).cpu() == y).sum().item()
        with no_param_grad(net):
            right += (net(x.cuda()).argmax(1).cpu() == y).sum().item()
    return right


def test_timed(net):
    net.eval()
    right = 0
    for x, y in loader:
        with timer(net):
            answer = net(x.cuda())  # expect: eval-without-no-grad
            right += (answer.argmax(1).cpu() == y).sum().item()
    return right


def one_batch(i):
    return list(loader)[i]


def train(net, gan, optimizer, loss_fn):
    state = torch.load(path)  # hint: checkpoint-without-map-location
    gan.load_state_dict(state)
    batches = list(loader)  # expect: dataset-in-a-list
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(net(gan(x.cuda())), y.cuda()).backward()
        optimizer.step()
