"""What operators use: health, metrics, live admin pages, system checks, demo data."""
