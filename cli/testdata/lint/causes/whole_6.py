import pickle, torch

with open("corpus.pkl", "rb") as f:
    corpus = pickle.load(f)  # hint: dataset-read-whole
loader = torch.utils.data.DataLoader(corpus, batch_size=8, num_workers=4)
net = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=1)
for b in loader:
    opt.zero_grad()
    net(b).sum().backward()
    opt.step()
