"""anomaly.py BOOL: a gradient, whose operator knows the line of the forward pass if anomaly detection is on."""
import sys

import torch

torch.autograd.set_detect_anomaly(sys.argv[1] == "True")
weights = torch.randn(1024, 1024, device="cuda", requires_grad=True)


def forward():
    return torch.mm(torch.ones(1024, 1024, device="cuda"), weights)


forward().sum().backward()
