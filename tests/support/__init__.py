"""What tests stand on: real services, real processes, a tiny model. `tests/conftest.py` makes fixtures of it."""
