"""Names, errors, validators and exact numbers: pure values."""
