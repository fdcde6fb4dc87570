"""Measures what communication costs on this machine: a program that a launcher starts on each rank.

`python -m dsprof.bench` is one rank; `dsprof bench` starts it. Torch is imported by its modules
and never by this package itself, nor by `options`.
"""
