"""Trains on two streams with sequences of growing length, as a server gets requests. Writes the snapshot of PyTorch's
memory to the file that is named, and prints the peaks: reserved, allocated."""
import json
import sys

import torch


def main():
    torch.cuda.memory._record_memory_history()
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    stream = torch.cuda.Stream()
    kept = []
    for step in range(12):
        tokens = 1000 + 1937 * step
        batch = torch.empty(tokens, 1024, device="cuda")
        with torch.cuda.stream(stream):
            copy = batch * 2
        batch.record_stream(stream)
        del batch
        torch.cuda.current_stream().wait_stream(stream)
        copy.record_stream(torch.cuda.current_stream())
        loss = model(copy).square().mean()
        loss.backward()
        optimizer.step()
        kept.append(torch.empty(tokens, 700, device="cuda"))
        del copy, loss
        if step == 6:
            torch.cuda.empty_cache()
    peaks = [torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()]
    torch.cuda.memory._dump_snapshot(sys.argv[1])
    print(json.dumps(peaks))


main()
