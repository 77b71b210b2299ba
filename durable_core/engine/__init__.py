"""What drives runs: admission, steps, leases and ways out."""
