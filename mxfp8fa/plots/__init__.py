"""Data in, matplotlib Figure out: `fig_<noun>(data, *, ax=None) -> Figure`. Reads no files, opens no windows."""
