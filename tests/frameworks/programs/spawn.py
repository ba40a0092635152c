"""Two processes of torch.multiprocessing with different tensors."""
import torch
import torch.multiprocessing


def work(rank):
    from oracle import moment
    model = torch.nn.Linear(512, 512).cuda()
    moment(f"process {rank}: the model")
    kept = [torch.empty((rank + 1) << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    moment(f"process {rank}: tensors")
    del kept[1:], model
    moment(f"process {rank}: the end")


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
