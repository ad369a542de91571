"""The same shapes done right: nothing may be found here."""
import torch
from torch import nn

model = nn.Linear(8, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)


def train(loader, device):
    running, correct = 0.0, 0
    history, kept, hits = [], [], []
    for x, y in loader:
        prediction = model(x.to(device))
        loss = criterion(prediction, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        running += loss.detach() * x.size(0)
        running += float(loss)
        history.append(loss.item())
        kept.append(prediction.detach().cpu())
        _, best = torch.max(prediction, 1)
        correct += (best == y).sum()
        hits.append(prediction.argmax(dim=1))
        if len(history) % 100 == 0:
            torch.cuda.empty_cache()
    return running / len(loader)


def sums_then_differentiates(loader):
    """The sum is what is differentiated: it must keep its graph."""
    for x, y in loader:
        total = 0
        for part in x.split(2):
            total += criterion(model(part), y)
        total.backward()
        optimizer.step()


def policy_gradient(episodes, env, policy):
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(episodes):
        log_probs = []
        for state in env:
            log_prob = policy(state)
            log_probs.append(log_prob)
        loss = -torch.stack(log_probs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def two_losses(loader, critic):
    """The graph is needed twice."""
    for x, y in loader:
        out = model(x)
        first = criterion(out, y)
        first.backward(retain_graph=True)
        second = critic(out).mean()
        second.backward()
        optimizer.step()


def accumulate(loader, steps=4):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / steps
        loss.backward()
        if (i + 1) % steps == 0 or i + 1 == len(loader):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def turns(loader, generator, critic, n_critic=5):
    """A GAN: two optimizers in turns, not a window of accumulation."""
    optimizer_g = torch.optim.Adam(generator.parameters())
    optimizer_d = torch.optim.Adam(critic.parameters())
    for i, (x, _) in enumerate(loader):
        optimizer_d.zero_grad()
        d_loss = critic(x).mean() - critic(generator(x).detach()).mean()
        d_loss.backward()
        optimizer_d.step()
        if i % n_critic == 0:
            optimizer_g.zero_grad()
            g_loss = -critic(generator(x)).mean()
            g_loss.backward()
            optimizer_g.step()


@torch.no_grad()
def evaluate(loader):
    model.eval()
    outputs = []
    for x, y in loader:
        outputs.append(model(x).cpu())
    return torch.cat(outputs)


def validate(loader):
    model.eval()
    total = 0
    with torch.inference_mode():
        for x, y in loader:
            total += criterion(model(x), y)
    model.train()
    return total


def score(net, loader):
    net.eval()
    return [net(x) for x, _ in loader]


with torch.no_grad():
    score(model, [])


def recurrent(rnn, loader, hidden):
    opt = torch.optim.Adam(rnn.parameters())
    for x, y in loader:
        hidden = tuple(h.detach() for h in hidden)
        out, hidden = rnn(x, hidden)
        loss = criterion(out, y)
        loss.backward()
        opt.step()


activations = {}


def remember(module, inputs, output):
    activations["last"] = output.detach()


model.register_forward_hook(remember)


def recover(loader):
    for x, y in loader:
        try:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
