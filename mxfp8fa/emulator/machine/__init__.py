"""The machine: memories, warps, CTAs, clusters, barriers, and the scheduler that runs a launch."""
