"""What `trainobs report` prints, from the numbers of `analysis`."""
