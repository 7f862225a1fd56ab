"""Tests of caches: prompt caches and cached answers."""
