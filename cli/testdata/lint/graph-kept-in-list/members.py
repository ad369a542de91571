"""One entry for each member of an ensemble, each agent, each temperature: as many as there are."""

import torch
import torch.nn.functional as F


class Ensemble:
    TEMPERATURES = torch.linspace(1, 10, 4)

    def __init__(self, critics, optimizers, n_agents):
        self.critics, self.optimizers, self.n_agents = critics, optimizers, n_agents

    def update(self, states, actions, goal):
        errors = []
        for critic, optimizer in zip(self.critics, self.optimizers):
            error = (critic(states, actions) - goal) ** 2
            errors.append(error)
            optimizer.zero_grad()
            error.mean().backward()
            optimizer.step()
        return torch.stack(errors).detach().mean(0)

    def of_agents(self, states, goals):
        losses = []
        for agent in range(self.n_agents):
            loss = F.mse_loss(self.critics[agent](states[:, agent]), goals[:, agent])
            self.optimizers[agent].zero_grad()
            loss.backward()
            self.optimizers[agent].step()
            losses.append(loss)
        return losses

    def over_batches(self, loader, critic, optimizer):
        losses = []
        for states, goals in loader:
            loss = F.mse_loss(critic(states), goals)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)  # expect: graph-kept-in-list
        return float(sum(losses)) / len(losses)

    def calibrated(self, model, loader):
        for x in loader:
            x = x.cuda().requires_grad_()
            by_temperature = {}
            for t in self.TEMPERATURES:
                with torch.enable_grad():
                    chance = (model(x) / t).softmax(-1).max(-1)[0]
                chance.sum().backward()
                by_temperature[float(t)] = chance
            print(max(c.mean().item() for c in by_temperature.values()))


def aligned(net, patients, optimizer, epochs):
    for _ in range(epochs):
        seen = {}
        for name in patients:
            for x, y in patients[name]:
                h = net.encode(x.cuda())
                seen[name] = h.mean(0)
                others = [v.detach() for k, v in seen.items() if k != name]
                loss = F.cross_entropy(net.head(h), y.cuda())
                loss = loss + sum(((h.mean(0) - o) ** 2).sum() for o in others)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def remembered(net, loader, optimizer, epochs):
    seen = {}
    for _ in range(epochs):
        for name, x, y in loader:
            h = net.encode(x.cuda())
            loss = F.cross_entropy(net.head(h), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen[name] = h  # expect: graph-kept-in-list
    return seen.keys()
