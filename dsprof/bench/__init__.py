"""Measures what a machine takes to communicate and multiply: a program that starts on each rank.

`python -m dsprof.bench` is one rank; `dsprof bench` starts it. Torch is imported by its modules
and never by this package itself, nor by `options`.
"""
