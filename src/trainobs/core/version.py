"""The version, which nobody has to ask the public face for."""

__version__ = "0.2.0"
