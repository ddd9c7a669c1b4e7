"""Plans: made, kept and found again, on the CPU and on GPUs."""
