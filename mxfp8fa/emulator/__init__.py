"""A Blackwell SM in Python: runs compiled PTX on a CPU, checks every access, and says exactly where a kernel goes wrong."""
