"""What every test gets."""

pytest_plugins = ["tests.plugins.no_skips"]
