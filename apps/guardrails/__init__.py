"""Policies for what may be said, and the record of what they did."""
