"""Where the outside world is touched: models, tools, the store. Importing one module loads one module."""
