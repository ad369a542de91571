"""A script that reads the weights of a model, asks it and nowhere names a card."""

import numpy as np
import torch
from poses import PoseNet, people

model = PoseNet(36, 4)
model.load_state_dict(torch.load("poses.pt"))
model.eval()
for person in people("scenes"):
    answer = model(torch.tensor(person, dtype=torch.float32))  # hint: eval-without-no-grad
    print(np.argmax(answer.detach().numpy()))
