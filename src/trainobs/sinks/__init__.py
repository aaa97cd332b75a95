"""Where the record goes: the run log (numbers of record) and TensorBoard."""
