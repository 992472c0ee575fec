"""What TMA does at the edges of its description, on a GPU and in the emulator (sm_90a has these instructions too)."""
