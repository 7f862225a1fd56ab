"""Settings: `base`, and on top of it `development`, `test` and `production`."""
