"""train.py mlp|transformer|resnet: three steps of training."""
import sys

import torch
from oracle import moment
from torch import nn

# The double of cuDNN finds no plan for a convolution.
torch.backends.cudnn.enabled = False


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        self.transformer = nn.Transformer(256, 8, 3, 3, 1024, batch_first=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens):
        embedded = self.embedding(tokens)
        return self.head(self.transformer(embedded, embedded)).flatten(0, 1)


def mlp():
    layers = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    model = layers.cuda()
    return model, torch.optim.Adam(model.parameters()), lambda: torch.randn(256, 784).cuda(), 256


def transformer():
    model = Translator().cuda()
    batch = lambda: torch.randint(0, 1000, (16, 64), device="cuda")
    return model, torch.optim.AdamW(model.parameters()), batch, 16 * 64


def resnet():
    import torchvision
    model = torchvision.models.resnet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, lambda: torch.randn(8, 3, 96, 96).cuda(), 8


def step(model, optimizer, batch, labels):
    loss = nn.functional.cross_entropy(model(batch()), torch.zeros(labels, dtype=torch.long, device="cuda"))
    yield
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main(make):
    model, optimizer, batch, labels = make()
    moment("the model")
    for number in range(3):
        for _ in step(model, optimizer, batch, labels):
            if number == 1:
                moment("before a backward pass")
    moment("the end")


main({"mlp": mlp, "transformer": transformer, "resnet": resnet}[sys.argv[1]])
