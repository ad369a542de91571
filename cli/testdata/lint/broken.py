import torch
loss.backward(
