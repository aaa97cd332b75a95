"""The torch side: loaders and data sets."""
