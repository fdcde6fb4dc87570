"""PyTorch's own distributed tests, run with dsprof and without: `make torch-suite`."""
