"""One sample at a time, a look at one batch, three rounds: nothing that grows."""

import torch
from tensorflow.keras.layers import Dense, Input
from tensorflow.keras.models import Model
from torch.utils.data import DataLoader, Dataset

RATES = ["adam"]
KINDS = ["elu", "selu", "relu"]


def fitted(x, y):
    for i in range(len(RATES)):
        for j in range(len(KINDS)):
            first = Input(shape=(1,))
            model = Model(first, Dense(1, activation=KINDS[j])(first))  # hint: keras-model-in-loop
            model.compile(loss="mse", optimizer=RATES[i])
            model.fit(x, y, epochs=100)


def fitted_for_long(x, y, widths):
    for width in widths:
        first = Input(shape=(1,))
        model = Model(first, Dense(1)(Dense(width)(first)))  # expect: keras-model-in-loop
        model.compile(loss="mse", optimizer="adam")
        model.fit(x, y, epochs=100)


def smallest_part(net, row, order, label):
    net.eval()
    share = 100
    while True:
        part = row * (order > share)
        guess = net(part.unsqueeze(0).cuda()).argmax(1)  # hint: eval-without-no-grad
        if share == 0 or guess.item() == label:
            return part
        share -= 1


def values(net, samples):
    net.eval()
    best = torch.zeros(len(samples))
    for i in range(len(samples)):
        state = samples[i][0]
        best[i] = net(state).max().item()  # hint: eval-without-no-grad
    return best


def timed(net, x, rounds):
    net.cuda().eval()
    for _ in range(rounds):
        with torch.no_grad():
            net(x.cuda())
        seen = getattr(net, "statistics", dict)()
        print(seen)


class Rows(Dataset):
    def __init__(self, source):
        self.rows = []
        for row in source:
            self.rows.append(row)  # expect: list-copied-here

    def __getitem__(self, i):
        return self.rows[i]


def looked_at(source):
    loader = DataLoader(Rows(source), 3, num_workers=4)  # hint: workers-copy-python-list
    print(next(iter(loader)))


class Policy:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters())

    def train(self, data):
        for x, y in data:
            loss = ((self.net(x) - y) ** 2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def of_scenarios(scenarios, make):
    policies = {}
    for name, data in scenarios:
        policy = Policy(make().cuda())
        policy.train(data)
        policies[name] = policy
    return policies


def read_through(source, use):
    stream = DataLoader(Rows(source), 3, num_workers=4)  # expect: workers-copy-python-list
    for rows in stream:
        use(rows)
