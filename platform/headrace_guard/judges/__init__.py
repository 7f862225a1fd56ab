"""Judges of windows: topics, abuse and language in a process of their own, questions by asking another deployment."""
