"""Code for PyTorch before 0.4."""

from elsewhere import loader, model
from torch.autograd import Variable

model.cuda().eval()
for x, y in loader:
    out = model(Variable(x.cuda(), volatile=True))
    print(out.data.max(1)[1])
