"""TorchRec sharders that keep hot rows on the device."""
