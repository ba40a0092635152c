"""anomaly.py BOOL: a gradient, whose operator knows the line of the forward pass if anomaly detection is on."""
import sys

import hbmprof.torch
import torch

torch.autograd.set_detect_anomaly(sys.argv[1] == "True")


class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(1024, 1024, device="cuda"))

    def forward(self, x):
        return torch.mm(x, self.weights)


model = Product()
with hbmprof.torch.watch(model):
    model(torch.ones(1024, 1024, device="cuda")).sum().backward()
