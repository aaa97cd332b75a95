"""The verdict: what a training loop waits for, said only as far as it was measured."""
