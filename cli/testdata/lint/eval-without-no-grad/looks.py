"""One state, one batch, one picture: what somebody looks at is not a pass over a dataset."""

import torch


def play(env, net, device):
    net.eval()
    for _ in range(500):
        state, done = env.reset(), False
        while not done:
            values = net(torch.tensor(state).to(device))  # hint: eval-without-no-grad
            state, _, done, _ = env.step(int(values.argmax()))


def first_batches(model, loader):
    model.eval()
    for step, data in enumerate(loader):
        if step == 2:
            break
        print(model(data.cuda()).shape)  # hint: eval-without-no-grad


def choose(policy, state):
    policy.eval()
    chances = torch.distributions.Categorical(policy(state))
    action = chances.sample()
    return action, chances.log_prob(action)
