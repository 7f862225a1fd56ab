"""Judging text as it arrives: what gateways (input) and workers (output) share. No Django, no vLLM, no Redis.

`scanner` judges character by character and holds back only what can still become a match; `windows` cuts what remains
into overlapping windows; `judges` look at windows in a process of their own; `combination` says which rules of which
policies apply.
"""
