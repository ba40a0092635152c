"""features.py graph|streams|pinned|loader|compiled|plain: parts of PyTorch that allocate in their own way."""
import sys

import torch
from oracle import moment
from torch import nn


def graph():
    model, x = nn.Linear(512, 512).cuda(), torch.randn(64, 512, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    moment("before the capture")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = model(x)
    moment("the graph")
    for _ in range(5):
        captured.replay()
    return model, x, y, captured


def streams():
    side, kept = torch.cuda.Stream(), []
    for number in range(20):
        with torch.cuda.stream(side):
            t = torch.randn(256, 1024, device="cuda")
        t.record_stream(torch.cuda.current_stream())
        kept.append(t[:1].clone())
        if number in (0, 10):
            moment(f"{number + 1} tensors")
    return kept


def pinned():
    host = [torch.empty(1 << 20, pin_memory=True) for _ in range(4)]
    moment("pinned memory")
    copies = [h.to("cuda", non_blocking=True) for h in host]
    moment("its copies")
    del copies[1::2]
    return host, copies


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.randn(1000)


def loader():
    model, kept = nn.Linear(1000, 100).cuda(), []
    moment("the model")
    for number, x in enumerate(torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2, pin_memory=True)):
        kept.append(model(x.cuda(non_blocking=True)).detach())
        if number == 3:
            moment("half of the batches")
    return model, kept


def steps(model, f, sizes):
    optimizer = torch.optim.Adam(model.parameters())
    for number, size in enumerate(sizes):
        optimizer.zero_grad()
        y = f(torch.randn(size, 256, device="cuda"))
        if number < 2:
            moment(f"forward pass {number + 1}")
        y.sum().backward()
        optimizer.step()
    return optimizer


def compiled():
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    return model, steps(model, torch.compile(model), (32, 32, 32))


def plain():
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    return model, steps(model, model, (32, 64, 512, 64, 2048))


if __name__ == "__main__":
    kept = globals()[sys.argv[1]]()
    moment("the end")
