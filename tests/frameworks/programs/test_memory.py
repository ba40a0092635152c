"""Tests with limits of hbmprof's pytest plugin: those whose names begin with test_good pass, the others fail."""
import pytest
import torch

kept = []


@pytest.mark.hbmprof(leak="0")
def test_good_first_use_of_the_gpu():
    x = torch.randn(1000, 1000, device="cuda")
    (x @ x).sum().item()


@pytest.mark.hbmprof(leak="0")
def test_good_second_use():
    x = torch.randn(1000, 1000, device="cuda")
    (x @ x).sum().item()


@pytest.mark.hbmprof(leak="0")
def test_bad_keeps_a_tensor():
    kept.append(torch.randn(500, 1000, device="cuda"))


@pytest.mark.hbmprof(peak="16MiB")
def test_bad_peak():
    torch.cuda.empty_cache()
    [torch.empty(4 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]


@pytest.mark.hbmprof(peak="16MiB")
def test_bad_peak_inside_the_cache():
    [torch.empty(4 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]
