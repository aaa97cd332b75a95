"""A TensorBoard tab that shows the run logs of trainobs."""
