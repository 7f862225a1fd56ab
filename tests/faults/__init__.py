"""Faults: processes killed, frozen, restarted, clients cut, at any token; what clients then have must be the answer."""
