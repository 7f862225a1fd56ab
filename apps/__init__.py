"""The Django apps, one noun each."""
