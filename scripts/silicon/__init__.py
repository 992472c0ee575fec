"""Compares the emulator with a CUDA GPU, bit by bit: `python scripts/silicon --help`."""
