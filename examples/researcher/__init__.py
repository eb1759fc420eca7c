"""A researcher with delegates and budgets."""
