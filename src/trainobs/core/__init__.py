"""Words shared by every room: metrics, records, kernel enums, errors."""
