"""TensorBoard: event files, curves, and the layout of its page."""
