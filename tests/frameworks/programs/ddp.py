"""Two ranks of torchrun with DistributedDataParallel on gloo; rank 1 keeps 16 MiB more."""
import torch
import torch.distributed
from oracle import moment
from torch import nn


def main():
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.cuda.set_device(rank)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
    parallel = nn.parallel.DistributedDataParallel(model)
    moment(f"rank {rank}: the model")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()
    moment(f"rank {rank}: three steps")
    kept = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(3 if rank == 1 else 1)]
    moment(f"rank {rank}: the end")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return kept


kept = main()
